"""Run `horovodrun` with a grace period of one minute after SIGTERM, and return the exit code of the training.

Horovod's own launcher kills its processes five seconds after SIGTERM, occasionally returns 0 for a stopped training,
and does not say why a process ended: the last line does here.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import contextlib
import platform
import re
import signal
import sys
import time
from typing import NamedTuple

import psutil
from horovod.runner.common.util import safe_shell_exec

GRACE_SECONDS = 60
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)  # exit codes after a stop request
LOST = "has lost the connection to another process"  # message of a training
_PLACE = re.compile(r"\bHOROVOD_(HOSTNAME|RANK|SIZE)=(\S+)")


def end_command(shell_id: int) -> None:
    """Send SIGTERM to the command that a shell runs, wait for it, and kill it after a minute, or if it is stopped.

    The shell returns its command's exit code to the process that started it and waits for it. Horovod's own function
    waits for the shell as well, and the second of two waiting processes receives 0: an interrupted training would be
    reported as successful.
    """
    try:
        shell = psutil.Process(shell_id)
        commands = shell.children() or [shell]  # some shells replace themselves by the command
    except psutil.NoSuchProcess:
        return
    for command in commands:
        _send(command.terminate)
    deadline = time.monotonic() + GRACE_SECONDS
    while any(map(_runs, commands)):
        if time.monotonic() > deadline or all(map(_is_stopped, commands)):  # by SIGSTOP: it handles no signal
            for command in commands:
                _kill(command)
            return
        time.sleep(0.05)


def _send(action) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        action()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return True


def _kill(process: psutil.Process) -> None:
    """Kill a process and its descendants."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        _send(member.kill)


class End(NamedTuple):
    """The end of a process."""

    place: dict[str, str]  # HOSTNAME, RANK and SIZE
    code: int
    last_line: str  # of its standard error


class LastLine:
    """A text stream that keeps the last line of what it passes on."""

    def __init__(self, stream):
        self._stream, self.text = stream, ""

    def write(self, text: str) -> None:
        """Pass on a text."""
        self._stream.write(text)
        self.text = re.sub(r"^.*?\[\d+\]<stderr>:", "", text).strip() or self.text

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()


_execute = safe_shell_exec.execute
_ends: list[End] = []


def execute(command, *arguments, **options) -> int:
    """Run a command as Horovod does, and note the end of a training process."""
    place = dict(_PLACE.findall(command)) if isinstance(command, str) else {}
    if "RANK" not in place:
        return _execute(command, *arguments, **options)
    last = options["stderr"] = LastLine(options.get("stderr") or sys.stderr)
    code = _execute(command, *arguments, **options)
    _ends.append(End(place, code, last.text))
    return code


def reason(ends: list[End]) -> str:
    """Return which process ended a job, and why; ends: of all processes, in order of time.

    A process that was killed, or that failed by itself, is the reason also if another one, which waited for it, ended
    before.
    """
    failed = [end for end in ends if end.code]
    by_itself = [end for end in failed if LOST not in end.last_line]
    end = next((end for end in failed if end.code > 128 and end.code not in STOPPED), (by_itself or failed)[0])
    if end.code in STOPPED:
        why = "a stop request"
    elif end.code == 128 + signal.SIGKILL and end is not failed[0]:
        why = "killed, because it no longer answered (stopped by SIGSTOP, or its machine hangs)"
    elif end.code == 128 + signal.SIGKILL:
        why = "killed by SIGKILL, as the kernel does when memory runs out (see dmesg)"
    elif 128 < end.code <= 128 + signal.NSIG:
        why = f"killed by {signal.Signals(end.code - 128).name}"
    else:
        why = f"exit code {end.code}: {end.last_line}"
    host = end.place["HOSTNAME"].replace("localhost", platform.node())
    return f"process {end.place['RANK']} of {end.place['SIZE']}, on {host}, ended: {why}"


# Set at import and not in main(): Horovod monitors each process from another process that it spawns, which imports this
# file but does not run main().
safe_shell_exec.terminate_executor_shell_and_children = end_command
safe_shell_exec.execute = execute


def main() -> None:
    """Run Horovod's command line; exit with 130 or 143 after a stop request, where Horovod itself returns 1."""
    from horovod.runner import launch

    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except RuntimeError as error:
        line = reason(_ends) if any(end.code for end in _ends) else " ".join(str(error).split())
        print(f"horovodrun: error: {line}; the same command resumes a training", file=sys.stderr)
        stopped = re.search(r"Exit code: (130|143)\b", str(error))
        sys.exit(int(stopped[1]) if stopped else 1)


if __name__ == "__main__":
    main()
