"""How many bytes of requests are in memory at one time, of all requests together."""

import contextlib
from collections.abc import Callable, Iterator

from efficientdet.serving.limits import Refusal


class Room:
    """Counts what requests hold; a request that there is no room for is told to come again."""

    def __init__(self, most: int):
        self._most, self._taken = most, 0

    @contextlib.contextmanager
    def visit(self) -> Iterator[Callable[[int], None]]:
        """For one request: a function that takes so many bytes more, and raises Refusal (503) where they are too many. All are
        given back at the end."""
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
