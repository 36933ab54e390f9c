"""`horovodrun` that gives a training a minute to save itself: Horovod's own kills its processes five seconds after SIGTERM.

    python scripts/horovodrun.py -np 8 --gloo python train.py ...
"""

import sys

SECONDS_TO_SAVE = 60


def main() -> None:
    """Horovod's command line; exit code 143 where a process was asked to stop and saved, as Horovod itself only knows 1."""
    from horovod.runner import launch
    from horovod.runner.common.util import safe_shell_exec

    safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = SECONDS_TO_SAVE
    sys.argv[0] = "horovodrun"
    try:
        launch.run_commandline()
    except RuntimeError as error:
        print(f"horovodrun: error: {error}", file=sys.stderr)
        sys.exit(143 if "Exit code: 143" in str(error) else 1)


if __name__ == "__main__":
    main()
