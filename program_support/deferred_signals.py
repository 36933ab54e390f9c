"""SIGINT and SIGTERM while something is under way that must be tidied: noted, and raised where the work may stop."""

import signal
import threading
from collections.abc import Callable

from program_support.signals import Listener


class Interrupted(KeyboardInterrupt):
    """The signal `number` came; it may be Ctrl-C or SIGTERM."""

    def __init__(self, number: int):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class PutOffSignals:
    """A block in which SIGINT and SIGTERM are only noted: `check` and the end of the block raise Interrupted for them.

    A second one ends the process at once, after a call of `at_the_second`. Outside the main thread nothing is heard.
    """

    def __init__(self, *, at_the_second: Callable[[], None] = lambda: None):
        self._at_the_second = at_the_second

    def __enter__(self) -> "PutOffSignals":
        self._number: int | None = None
        self._came = threading.Event()
        self._listener = Listener(self._heard).start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._listener.stop()  # from here on nothing is put off any more
        if kind is None:
            self.check()

    def check(self, *, seconds: float = 0.0) -> None:
        """Raise Interrupted if a signal came, or comes within so many seconds."""
        if self._came.wait(seconds):
            raise Interrupted(self._number)

    def _heard(self, number: int) -> None:
        """Note the first signal, end the process at the second; called in the thread that listens."""
        if self._came.is_set():
            self._at_the_second()
            self._listener.end(number, "ended at once; the same command clears up and continues")
        self._number = number
        self._came.set()
