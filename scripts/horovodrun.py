"""`horovodrun` that gives a training a minute to save itself and passes its exit code on: Horovod's own kills its processes
five seconds after SIGTERM, and now and then answers 0 for one that was asked to stop.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import contextlib
import re
import sys
import time

import psutil
from horovod.runner.common.util import safe_shell_exec

PATIENCE_SECONDS = 60


def end_command(shell_id: int) -> None:
    """Ask what a shell runs to stop, wait until it did, and kill what did not in a minute.

    The shell ends with its command and with the command's exit code, and whoever started it waits for that. Horovod's own
    function waits for the shell as well, and of two who wait the second is reported 0: a training that was interrupted would
    have succeeded.
    """
    try:
        shell = psutil.Process(shell_id)
        commands = shell.children() or [shell]  # some shells become the command
    except psutil.NoSuchProcess:
        return
    for command in commands:
        _send(command.terminate)
    patience = time.monotonic() + PATIENCE_SECONDS
    while any(map(_runs, commands)):
        if time.monotonic() > patience:
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


def _kill(process: psutil.Process) -> None:
    """And what it started."""
    try:
        family = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for member in family:
        _send(member.kill)


# Here and not in main(): Horovod watches each process from another one that it spawns, which imports this file but does
# not run main().
safe_shell_exec.terminate_executor_shell_and_children = end_command


def main() -> None:
    """Horovod's command line; 130 and 143 where a process was asked to stop and saved, as Horovod itself only knows 1."""
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
