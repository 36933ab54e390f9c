"""The programs of this project, each in a process of its own that ends with its parent.

On Linux it is forked from this process, which has imported TensorFlow and Keras once and runs no operation of theirs:
their threads would be missing in it. In a block with `output_to` their output goes to a log file, and the console shows
their warnings, errors and progress.
"""

import contextlib
import ctypes
import functools
import importlib.util
import multiprocessing
import os
import re
import runpy
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from efficientdet.configuration.program_flags import remove_flags
from efficientdet.devices.runtime_environment import prepare_environment
from program_support.command_line import USER_ERROR_EXIT_CODE

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOG: ContextVar[Path | None] = ContextVar("log of the programs", default=None)
_POLL_SECONDS, _FIRST_PROGRESS_SECONDS = 0.2, 15.0
_PROGRESS = re.compile(r"\w+: (epoch|step|image) .* ETA ")
_SHOWN = re.compile(r"warning: |[\w.]+: error: |epoch \d+: AP ")  # and the AP of an evaluation
_LONGEST = 240  # characters of a line of the console, but for errors
# On Linux the kernel sends SIGTERM to the program when this process ends, even by SIGKILL; the program then saves and
# stops.
_PR_SET_PDEATHSIG = 1
# For a program that is started by its command: `preexec_fn` is unsafe in a process with threads.
_END_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM.value}); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); "  # the parent has already ended
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
_processes = multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")


def import_packages() -> None:
    """Import what most programs need, once for all of them."""
    prepare_environment()
    import keras  # noqa: F401


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
    arguments, log = _arguments(module, settings), _LOG.get()
    command, start = f"\n$ python {shlex.join(arguments)}", 0
    if log:
        print(f"$ python {arguments[0]} ..", flush=True)
        with log.open("a", encoding="utf-8") as output:
            print(command, file=output)
            start = output.tell()
    else:
        print(command, flush=True)
    program = _processes.Process(target=_execute, args=(arguments, log, os.getpid()))
    program.start()

    def forward(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(program.pid or 0, number)

    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number, handler in handlers.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, forward)
        code = _follow(program, log, start=start)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code:
        advice = "" if code == USER_ERROR_EXIT_CODE else "; run the same command again to resume"
        where = f" ({log})" if log else ""
        print(f"\nquickstart: {module} exited with status {code}{where}{advice}", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def result_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that runs operations of TensorFlow, computed in a process of its own."""
    begin = functools.partial(_separate, os.getpid())
    with ProcessPoolExecutor(1, mp_context=_processes, initializer=begin) as executor:
        return executor.submit(function, *arguments).result()


def _separate(parent: int) -> None:
    """Separate this process from the signals of a terminal, and on Linux let it end with its parent.

    A Ctrl-C then reaches it only through the parent; a second signal would end it unsaved.
    """
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM.value)
        if os.getppid() != parent:  # it has already ended
            sys.exit(1)


def _execute(arguments: list[str], log: Path | None, parent: int) -> None:
    """Run a program in this new process, by the arguments of its command."""
    _separate(parent)
    if log:
        with log.open("a", encoding="utf-8") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
    # New objects, because Python keeps for each whether its file can be sought
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)
    remove_flags()  # those of the parent
    *options, script = arguments[:1] if arguments[0] != "-P" else arguments[:3]
    sys.argv = [script, *arguments[len(options) + 1 :]]
    if options:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


def _follow(program: BaseProcess, log: Path | None, *, start: int) -> int:
    """Wait for a program; print its warnings and errors, its APs, and its progress in growing intervals.

    start: where its output begins in the log.
    """
    begin, due, rest = time.monotonic(), _FIRST_PROGRESS_SECONDS, ""
    with Path(log or os.devnull).open(encoding="utf-8", errors="replace") as stream:
        stream.seek(start)
        is_running = True
        while is_running:
            program.join(_POLL_SECONDS)
            is_running = program.exitcode is None
            *lines, rest = (rest + stream.read()).split("\n")
            for line in lines:
                is_due = time.monotonic() - begin >= due and _PROGRESS.match(line)
                if is_due:
                    due *= 2
                if is_due or _SHOWN.match(line):
                    is_error = ": error: " in line
                    print(
                        line if is_error else shortened(line), flush=True, file=sys.stderr if is_error else sys.stdout
                    )
    return program.exitcode or 0


def shortened(line: str) -> str:
    """Return a line for the console; the log has all of it."""
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} .."


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
