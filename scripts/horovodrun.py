"""`horovodrun` that gives a training a minute to save itself: Horovod's own kills its processes five seconds after SIGTERM.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import re
import sys

from horovod.runner.common.util import safe_shell_exec

# Here and not in main(): Horovod watches each process from another one that it spawns, which imports this file but does
# not run main().
safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = 60


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
