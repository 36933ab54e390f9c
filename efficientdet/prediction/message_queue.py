"""Messages to other programs: sent in the order of their creation by a thread, which never delays the detection."""

import threading
import time
from collections import deque
from typing import Protocol

from program_support.errors import printable

_MOST_MESSAGES = 1000  # waiting; the oldest is dropped for a further one
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
_SECONDS_AT_THE_END = 5.0  # time for the messages that still wait when the program ends


class RejectedMessage(Exception):
    """The receiver answered that it does not accept a message, so that sending it again would not help."""


class Target(Protocol):
    """A receiver of messages."""

    @property
    def shown(self) -> str:
        """Return the address for messages, without secrets."""

    def send(self, payload: bytes) -> None:
        """Send a message, and return when it was received.

        Raises:
            RejectedMessage: the receiver refuses it.
            OSError: it was not received; it is sent again.
        """

    def close(self) -> None:
        """Close the connection."""


class MessageQueue:
    """Sends messages to a target: each until it is received, with pauses that double from 1 to 60 seconds.

    At most 1,000 messages wait. If there are more, the oldest is dropped. `close` reports how many were sent, dropped
    and refused.
    """

    def __init__(self, target: Target):
        self._target = target
        self._waiting: deque[bytes] = deque()
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._sent, self._dropped, self._refused = 0, 0, 0
        self._thread = threading.Thread(target=self._send_all, daemon=True, name="messages")
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Let a message be sent; return at once."""
        with self._changed:
            if len(self._waiting) >= _MOST_MESSAGES:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(payload)
            self._changed.notify()

    def close(self) -> None:
        """Wait up to 5 seconds for the waiting messages, and print the numbers."""
        deadline = time.monotonic() + _SECONDS_AT_THE_END
        with self._changed:
            while self._waiting and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._closed.set()
            self._changed.notify_all()
        self._thread.join(max(deadline - time.monotonic(), 0.1))
        with self._changed:
            numbers = {"dropped": self._dropped, "refused": self._refused, "not sent": len(self._waiting)}
        parts = [f"{self._sent:,} messages sent", *(f"{count:,} {what}" for what, count in numbers.items() if count)]
        if self._sent or any(numbers.values()):
            print(f"{self._target.shown}: {', '.join(parts)}")
        if not self._thread.is_alive():
            self._target.close()

    def _send_all(self) -> None:
        pause, failed_at, is_refusing = _FIRST_PAUSE_SECONDS, None, False
        while (payload := self._next()) is not None:
            try:
                self._target.send(payload)
            except RejectedMessage as error:
                if not is_refusing:
                    print(f"{self._target.shown}: {printable(str(error))}; such messages are dropped")
                is_refusing = True
                self._done(payload, sent=False)
                continue
            except OSError as error:
                if self._closed.is_set():
                    return
                if failed_at is None:
                    failed_at = time.monotonic()
                    reason = printable(str(error.strerror or error))
                    print(f"{self._target.shown}: {reason}; up to {_MOST_MESSAGES:,} messages wait to be sent again")
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            self._done(payload, sent=True)
            if failed_at is not None:
                seconds = time.monotonic() - failed_at
                print(f"{self._target.shown}: sending again after {seconds:.0f} s; {self._dropped:,} messages dropped")
            pause, failed_at, is_refusing = _FIRST_PAUSE_SECONDS, None, False

    def _next(self) -> bytes | None:
        """Wait for a message and return it; None at the end."""
        with self._changed:
            while not self._waiting and not self._closed.is_set():
                self._changed.wait()
            return None if self._closed.is_set() else self._waiting[0]

    def _done(self, payload: bytes, *, sent: bool) -> None:
        """Count a message and remove it, unless it was dropped in the meantime."""
        with self._changed:
            self._sent += sent
            self._refused += not sent
            if self._waiting and self._waiting[0] is payload:
                self._waiting.popleft()
            elif sent:
                self._dropped -= 1  # the oldest, which was dropped while it was sent
            self._changed.notify_all()
