"""The programs of this project as processes: shown as one would type them, and stopped with what started them."""

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# On Linux the kernel sends SIGTERM to the program when this process ends, even by SIGKILL; the program then saves and stops.
# A small program asks for it and becomes the program: `preexec_fn` is unsafe in a process with threads, as NumPy's.
_PR_SET_PDEATHSIG = 1
_END_WITH_PARENT = (
    "import ctypes, os, sys; "
    f"ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM.value}); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); "  # it ended before
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])")


def run_program(module: str, settings: Mapping[str, Any], *, go_on: str) -> None:
    """Run a program, `train` or `dataset.create_tfrecord`, with a flag for each setting that is not None (a list: one for each
    of its values), and wait for its end.

    A signal is handed on to it, and on Linux it ends with this process. Ends this process with the exit code of a program that
    fails, which has said why, and says with `go_on` what to do then.
    """
    arguments = [*_place(module), *(f"--{name}={value}" for name, values in settings.items() if values is not None
                                   for value in (values if isinstance(values, list) else [values]))]
    print(f"\n$ python {shlex.join(arguments)}", flush=True)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # A group of its own: a Ctrl-C comes to it once, through this process, and not a second time, which would end it unsaved.
    with subprocess.Popen([sys.executable, *_bound_to_this_process(), *arguments], process_group=0) as program:
        def hand_on(number: int, _: FrameType | None) -> None:
            program.send_signal(number)

        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, hand_on)
            code = program.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code:
        print(f"\nquickstart: {module} exited with status {code}; {go_on}", file=sys.stderr)
        sys.exit(code if code > 0 else 128 - code)


def _bound_to_this_process() -> list[str]:
    """Arguments of Python before those of a program that is to end with this process; none where no kernel sees to it."""
    return ["-c", _END_WITH_PARENT, str(os.getpid())] if sys.platform == "linux" else []


def _place(module: str) -> list[str]:
    """Where a program stands, as short as it can be said here; of an installed wheel its name."""
    if importlib.util.find_spec("efficientdet.checkout") is None:
        name = f"efficientdet.{module}" if "." in module else f"efficientdet.programs.{module}"
        return ["-P", "-m", name]  # -P: without the modules of the current folder
    path = importlib.util.find_spec(module).origin
    return [min(path, os.path.relpath(path), key=len) if Path(path).is_relative_to(Path.cwd()) else path]
