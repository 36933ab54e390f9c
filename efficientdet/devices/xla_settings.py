"""Compilation: how XLA launches kernels under JAX, where compiled programs are stored, how long it took last time."""

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec

from program_support.atomic_files import write_text
from program_support.user_cache import user_cache

_LAUNCHES = {
    # Without CONVOLUTION, which is not in XLA's default, a CUDA graph ends at each convolution.
    "--xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION,CONVOLUTION",
    "--xla_gpu_graph_min_graph_size": "1",
}
_SECONDS_FILE = "compilation_seconds.json"
_LINE_PERIOD_SECONDS = 15.0
_KNOWS_CONVOLUTION = (0, 10, 1)  # jaxlib 0.10.0 ends the process at this name


def launch_convolutions_in_graphs() -> None:
    """Let XLA launch a program's kernels as CUDA graphs, convolutions included; call it before JAX opens a device.

    One image through D0 is 643 kernels of 2 us: 3.8 instead of 8.3 ms on an H100. A flag that XLA_FLAGS has is kept,
    and nothing is set without JAX's CUDA plugin or for a jaxlib that would not know the names.
    """
    if not any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return
    if tuple(map(int, re.findall(r"\d+", metadata.version("jaxlib"))[:3])) < _KNOWS_CONVOLUTION:
        return
    flags = os.environ.get("XLA_FLAGS", "")
    chosen = [f"{name}={value}" for name, value in _LAUNCHES.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join(filter(None, [flags, *chosen]))


def store_compiled_programs() -> None:
    """Let JAX store compiled programs and autotuning results in the user's cache folder.

    JAX_COMPILATION_CACHE_DIR names another folder, JAX_ENABLE_COMPILATION_CACHE=false turns it off. The files are code:
    a folder that another user owns or may write to is not used, with a warning.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = user_cache("xla")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        reason = f"its owner is user {status.st_uid}" if status.st_uid != os.geteuid() else None
        reason = reason or ("others may write to it" if status.st_mode & 0o022 else None)
    except OSError as error:
        reason = error.strerror
    if reason:
        print(f"warning: {folder}: compiled programs are not stored, {reason}", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_enable_xla_caches", "all")


@contextlib.contextmanager
def announced_compilation(what: str, facts: str, *, log: Callable[[str], None]) -> Iterator[None]:
    """Log that a block compiles `what`, how long it took with the same facts last time, and a line every 15 seconds."""
    begun, done, seconds = time.monotonic(), threading.Event(), _compilation_seconds()
    last = f", {seconds[facts]:.0f} s last time" if facts in seconds else "; on an accelerator this may take minutes"
    log(f"compiling {what}{last}")

    def report() -> None:
        while not done.wait(_LINE_PERIOD_SECONDS):
            log(f"compiling {what}: {time.monotonic() - begun:.0f} s so far")

    reporter = threading.Thread(target=report, daemon=True, name="compilation")
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join()
    with contextlib.suppress(OSError, RuntimeError):  # no home, or it cannot be written: the next start knows no time
        record = user_cache(_SECONDS_FILE)
        record.parent.mkdir(parents=True, exist_ok=True)
        write_text(record, json.dumps({**seconds, facts: time.monotonic() - begun}))


def _compilation_seconds() -> dict[str, float]:
    """Return the seconds of earlier compilations by their facts; empty the first time, or if the file is damaged."""
    try:
        content = json.loads(user_cache(_SECONDS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):  # the last one: there is no home
        return {}
    return (
        {name: value for name, value in content.items() if isinstance(value, float)}
        if isinstance(content, dict)
        else {}
    )
