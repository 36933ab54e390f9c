"""Run `horovodrun` with a grace period of one minute after SIGTERM, and return the exit code of the training.

Horovod's own launcher kills its processes five seconds after SIGTERM, and occasionally returns 0 for a stopped
training.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import contextlib
import re
import sys
import time

import psutil
from horovod.runner.common.util import safe_shell_exec

GRACE_SECONDS = 60


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


def _send(signal) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        signal()


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


# Set at import and not in main(): Horovod monitors each process from another process that it spawns, which imports this
# file but does not run main().
safe_shell_exec.terminate_executor_shell_and_children = end_command


def main() -> None:
    """Run Horovod's command line; exit with 130 or 143 after a stop request, where Horovod itself returns 1."""
    from horovod.runner import launch

    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except RuntimeError as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        stopped = re.search(r"Exit code: (130|143)\b", str(error))
        sys.exit(int(stopped[1]) if stopped else 1)


if __name__ == "__main__":
    main()
