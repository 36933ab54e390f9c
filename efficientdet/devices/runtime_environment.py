"""Process-wide settings of TensorFlow, XLA, the C library's allocator and signals, and the time of a compilation.

Imports nothing slow.
"""

import contextlib
import ctypes
import gc
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from program_support.atomic_files import user_cache, write_text
from program_support.errors import silenced_stderr

# Constants of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_STEP = 256 << 20  # bytes taken from the system at a time
_LAUNCHES = {
    # Without CONVOLUTION, which is not in XLA's default, a CUDA graph ends at each convolution.
    "--xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,CONDITIONAL,WHILE,"
    "DYNAMIC_SLICE_FUSION,CONVOLUTION",
    "--xla_gpu_graph_min_graph_size": "1",
}
_SECONDS_FILE = "compilation_seconds.json"
_LINE_PERIOD_SECONDS = 15.0
_KNOWS_CONVOLUTION = (0, 10, 1)  # jaxlib 0.10.0 ends the process at this name


def prepare_environment(*, owns_process: bool = True) -> None:
    """Import TensorFlow with oneDNN's kernels and without its start-up messages on the console.

    C++ code writes them to the standard error of the process before a log level can be set, so the file descriptor is
    redirected. TensorFlow itself uses oneDNN only on processors with AVX-512 VNNI, but convolutions, batch norm and
    their gradients are faster with it on others too.
    owns_process: False in a third-party process, whose objects are not exempted from garbage collection.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()  # garbage collection would take a fifth of the import and find nothing
    try:
        with silenced_stderr():
            import tensorflow  # noqa: F401
    finally:
        if owns_process:
            gc.freeze()
        if collects:
            gc.enable()


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system, which would clear every page again.

    On a CPU the tensors of a step are allocated again each time, and glibc maps and unmaps every large one: a third of
    the time of a step of D0 at 512 pixels. The process then keeps its peak memory. Nothing is done with another C
    library, or if the environment configures the allocator (MALLOC_ARENA_MAX and similar variables, GLIBC_TUNABLES).
    """
    library = ctypes.CDLL(None)
    is_configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if is_configured or not hasattr(library, "gnu_get_libc_version"):
        return
    # One arena, because thread arenas return heaps regardless of the threshold, and no separate mappings.
    for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, _STEP)):
        library.mallopt(parameter, value)


class _SignalStack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restore this thread's signal stack after a block; does nothing on systems without signal stacks.

    OpenVINO sets a signal stack in the thread that compiles a network and frees it with the network. Python's handlers
    run on that stack, so the next Ctrl-C would cause a segmentation fault.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "sigaltstack"):
        yield
        return
    previous = _SignalStack()
    library.sigaltstack(None, ctypes.byref(previous))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(previous), None)


def launch_convolutions_in_graphs() -> None:
    """Let XLA launch a program's kernels as CUDA graphs, convolutions included; call it before JAX opens a device.

    One image through D0 is 643 kernels of 2 us: 3.8 instead of 8.3 ms on an H100. A flag that XLA_FLAGS has is kept,
    and nothing is set without JAX's CUDA plugin or for a jaxlib that would not know the names.
    """
    if not any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return
    from importlib import metadata  # 20 ms

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
