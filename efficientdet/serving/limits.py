"""Limits of a server, and the error for a request that exceeds them."""

import contextlib
from collections.abc import Callable, Iterator

MAX_SIDE = 16_384  # pixels; resampling a line of millions of pixels would take gigabytes
MAX_REQUESTS_IN_MEMORY = 16  # requests of maximum size that fit into the memory budget
MAX_CONNECTIONS = 256  # open connections; each takes a file descriptor, and a process often has 1,024


class RequestError(Exception):
    """Error reply to a request: HTTP status, a one-line reason, and optionally the seconds until a retry."""

    def __init__(self, status: int, reason: str, *, retry_after_s: int | None = None):
        super().__init__(reason)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class MemoryBudget:
    """Memory budget in bytes for the bodies of all requests."""

    def __init__(self, max_bytes: int):
        self._max_bytes, self._reserved = max_bytes, 0

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves further bytes for one request, until its end.

        The function raises RequestError (503) if the budget is exceeded.
        """
        reserved = 0

        def reserve(count: int) -> None:
            nonlocal reserved
            if self._reserved + count > self._max_bytes:
                raise RequestError(503, "too many large requests at once; retry later", retry_after_s=1)
            reserved += count
            self._reserved += count

        try:
            yield reserve
        finally:
            self._reserved -= reserved
