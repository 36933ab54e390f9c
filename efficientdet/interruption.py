"""A polite end: SIGTERM (Slurm, Kubernetes, a launcher whose other process died) asks a training to save and stop."""

import signal

INTERRUPTED_EXIT_CODE = 143  # 128 + SIGTERM: everything is saved, start the same command again


class StopWish:
    """Whether this process was asked to stop; listens while it is entered.

    Only noted here: in the middle of a step nothing can be saved, and all ranks must agree first.
    """

    def __init__(self):
        self.wished = False

    def __enter__(self) -> "StopWish":
        self._previous = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_) -> None:
        signal.signal(signal.SIGTERM, self._previous)

    def _note(self, *_) -> None:
        self.wished = True


class Interrupted(SystemExit):
    """Ends the process with the code that says: saved, start me again."""

    def __init__(self):
        super().__init__(INTERRUPTED_EXIT_CODE)
