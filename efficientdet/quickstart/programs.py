"""The programs of this project as subprocesses, which end with their parent.

In a block with `output_to` their output goes to a log file, and the console shows their warnings, errors and progress.
"""

import contextlib
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from program_support.command_line import USER_ERROR_EXIT_CODE

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOG: ContextVar[Path | None] = ContextVar("log of the programs", default=None)
_POLL_SECONDS, _FIRST_PROGRESS_SECONDS = 0.2, 15.0
_PROGRESS = re.compile(r"\w+: (epoch|step|image) .* ETA ")
# Warnings, errors, what was converted, and the AP of an evaluation
_SHOWN = re.compile(r"warning: |[\w.]+: error: |(train|val|test): \d+ images$|boxes |classes |epoch \d+: AP ")
# On Linux the kernel sends SIGTERM to the program when this process ends, even by SIGKILL; the program then saves and
# stops. A small Python program requests it and then executes the program: `preexec_fn` is unsafe in a process with
# threads.
_PR_SET_PDEATHSIG = 1
_END_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM.value}); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); "  # the parent has already ended
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)


@contextlib.contextmanager
def output_to(log: Path) -> Iterator[None]:
    """Append what programs print in a block to a file; the console gets a part of it, see `_follow`."""
    token = _LOG.set(log)
    try:
        yield
    finally:
        _LOG.reset(token)


def run_program(module: str, settings: Mapping[str, Any]) -> None:
    """Run a program, such as `train` or `dataset.create_tfrecord`, and wait until it ends.

    It gets a flag for each setting that is not None; a list gives one flag per value. Signals are forwarded to it, and
    on Linux it ends with this process. If the program fails, this process exits with the same exit code.
    """
    arguments = _arguments(module, settings)
    with contextlib.ExitStack() as stack:
        output, log = None, _LOG.get()
        if log:
            output = stack.enter_context(log.open("a", encoding="utf-8"))
            print(f"$ python {arguments[0]} ..", flush=True)
        print(f"\n$ python {shlex.join(arguments)}", file=output, flush=True)
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        # A separate process group: a Ctrl-C reaches it only through this process; a second signal would end it unsaved.
        # close_fds=False: it inherits the lock of the output folder; Python's other files are not inheritable.
        program = stack.enter_context(
            subprocess.Popen(
                program_command(module, settings), stdout=output, stderr=output, process_group=0, close_fds=False
            )
        )

        def forward(number: int, _: FrameType | None) -> None:
            program.send_signal(number)

        try:
            for number, handler in handlers.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, forward)
            code = _follow(program, log, start=output.tell()) if log and output else program.wait()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    if code:
        advice = "" if code == USER_ERROR_EXIT_CODE else "; run the same command again to resume"
        where = f" ({log})" if log else ""
        print(f"\nquickstart: {module} exited with status {code}{where}{advice}", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def _follow(program: subprocess.Popen, log: Path, *, start: int) -> int:
    """Wait for a program; print its warnings and errors, its results, and its progress in growing intervals.

    start: where its output begins in the log.
    """
    begin, due, code, rest = time.monotonic(), _FIRST_PROGRESS_SECONDS, None, ""
    with log.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(start)
        while code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = program.wait(timeout=_POLL_SECONDS)
            *lines, rest = (rest + stream.read()).split("\n")
            for line in lines:
                is_due = time.monotonic() - begin >= due and _PROGRESS.match(line)
                if is_due:
                    due *= 2
                if is_due or _SHOWN.match(line):
                    print(line, flush=True, file=sys.stderr if ": error: " in line else sys.stdout)
    return code


def program_command(module: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the command of a program with `settings` as in `run_program`; on Linux it ends with the calling thread."""
    return [sys.executable, *_ending_with_parent(), *_arguments(module, settings)]


def _arguments(module: str, settings: Mapping[str, Any]) -> list[str]:
    return [
        *_program_arguments(module),
        *(
            f"--{name}={value}"
            for name, values in settings.items()
            if values is not None
            for value in (values if isinstance(values, list) else [values])
        ),
    ]


def _ending_with_parent() -> list[str]:
    """Return Python arguments that make a program end with this process; none except on Linux."""
    return ["-c", _END_WITH_PARENT, str(os.getpid())] if sys.platform == "linux" else []


def _program_arguments(module: str) -> list[str]:
    """Return the shortest path of a program; in an installed wheel its module name."""
    if importlib.util.find_spec("efficientdet.checkout") is None:
        name = f"efficientdet.{module}" if "." in module else f"efficientdet.programs.{module}"
        return ["-P", "-m", name]  # -P: without the modules of the current folder
    spec = importlib.util.find_spec(module)
    assert spec is not None
    path = spec.origin
    assert path is not None
    return [min(path, os.path.relpath(path), key=len) if Path(path).is_relative_to(Path.cwd()) else path]
