"""Deferred SIGINT and SIGTERM: recorded during work that needs cleanup, and raised where the work may stop."""

import signal
import threading
from collections.abc import Callable

from program_support.signals import Listener


class Interrupted(KeyboardInterrupt):
    """A signal was received, SIGINT (Ctrl-C) or SIGTERM."""

    def __init__(self, number: int):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class PutOffSignals:
    """Context in which SIGINT and SIGTERM are only recorded: `check` and the end of the block raise Interrupted.

    A second signal ends the process immediately, after a call of `at_the_second`. Outside the main thread no signals
    are handled.
    """

    def __init__(self, *, at_the_second: Callable[[], None] = lambda: None):
        self._at_the_second = at_the_second

    def __enter__(self) -> "PutOffSignals":
        self._number = 0  # of the signal that was received
        self._came = threading.Event()
        self._listener = Listener(self._heard).start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._listener.stop()  # signals are not deferred from here on
        if kind is None:
            self.check()

    def check(self, *, seconds: float = 0.0) -> None:
        """Raise Interrupted if a signal was received, or is received within `seconds`."""
        if self._came.wait(seconds):
            raise Interrupted(self._number)

    def _heard(self, number: int) -> None:
        """Record the first signal, end the process at the second; called in the listening thread."""
        if self._came.is_set():
            self._at_the_second()
            self._listener.end(number, "exited immediately; run the same command again to clean up and resume")
        self._number = number
        self._came.set()
