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


class DeferredSignals:
    """Context in which SIGINT and SIGTERM are only recorded: `check` and the end of the block raise Interrupted.

    A second signal ends the process immediately, after a call of `on_second_signal`. Outside the main thread no signals
    are handled.
    """

    def __init__(self, *, on_second_signal: Callable[[], None] = lambda: None):
        self._on_second_signal = on_second_signal

    def __enter__(self) -> "DeferredSignals":
        self._number = 0  # the received signal's
        self._received = threading.Event()
        self._listener = Listener(self._handle).start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._listener.stop()  # signals are not deferred from here on
        if kind is None:
            self.check()

    def check(self, *, seconds: float = 0.0) -> None:
        """Raise Interrupted if a signal was received, or is received within `seconds`."""
        if self._received.wait(seconds):
            raise Interrupted(self._number)

    def _handle(self, number: int) -> None:
        """Record the first signal, end the process at the second; called in the listening thread."""
        if self._received.is_set():
            self._on_second_signal()
            self._listener.end(number, "exited immediately; run the same command again to clean up and resume")
        self._number = number
        self._received.set()
