"""`horovodrun` that gives a training a minute to save itself: Horovod's own kills its processes five seconds after SIGTERM.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import sys

from horovod.runner.common.util import safe_shell_exec

# Here and not in main(): Horovod watches each process from another one that it spawns, which imports this file but does
# not run main().
safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = 60


def main() -> None:
    """Horovod's command line; exit code 143 where a process was asked to stop and saved, as Horovod itself only knows 1."""
    from horovod.runner import launch

    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except RuntimeError as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        sys.exit(143 if "Exit code: 143" in str(error) else 1)


if __name__ == "__main__":
    main()
