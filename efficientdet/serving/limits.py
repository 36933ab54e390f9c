"""Limits of a server, and the refusal of a request that exceeds one."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated

from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from efficientdet.checkpoints.stored_thresholds import DEFAULT_THRESHOLD
from program_support.checked_fields import Count, Limit, Share, between, checked

MOST_SIDE = 16_384  # pixels: resampling a line of millions would take gigabytes
REQUESTS_HELD = 16  # of the largest size, in memory at one time
_SECONDS = Limit(lambda value: 0 < value <= 3600, "above 0, up to 3600")
MOST_CONNECTIONS = 256  # open at one time; each takes a file descriptor, of which a process often has 1,024


@checked
class Limits:
    """The flags of serve.py that bound a request."""

    max_batch: Count = 8  # images that the detector is handed at a time
    max_request_bytes: Count = 20 * 2**20
    max_pixels: Annotated[int, between(1, LARGEST_IMAGE_PIXELS)] = 40_000_000  # of an image, and of a batch of several
    max_queue: Count = 64  # images that wait, of all requests together
    request_timeout_s: Annotated[float, _SECONDS] = 30.0  # for the body to come, and again for the detections
    min_score: Share = DEFAULT_THRESHOLD  # where a request does not say


class Refusal(Exception):
    """A request that is not answered as asked: a status of HTTP, one line, and perhaps when to come again."""

    def __init__(self, status: int, reason: str, *, retry_after_s: int | None = None):
        super().__init__(reason)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class MemoryBudget:
    """Bytes that the bodies of all requests may take together."""

    def __init__(self, most: int):
        self._most, self._taken = most, 0

    @contextlib.contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves further bytes for one request, until its end.

        The function raises Refusal (503) where the budget is exceeded.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self._taken + count > self._most:
                raise Refusal(503, "too many large requests at once; come again", retry_after_s=1)
            taken += count
            self._taken += count

        try:
            yield take
        finally:
            self._taken -= taken
