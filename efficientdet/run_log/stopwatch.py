"""Time of a training by activity: waiting for input, computing, evaluating, writing checkpoints."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

_RECENT = 100  # spans; steps have two or three each
_IN_STEPS = ("input", "compute", "compilation")
_STALLED = 0.2  # share of the time


def input_stall(share: float) -> str:
    """Return a warning for a training that waits for its input for a large share of the time, else an empty string."""
    if share < _STALLED:
        return ""
    return (
        f"waiting for input {share:.0%} of the time: decoding and resizing images is the bottleneck; give each process "
        "more CPU cores, or store smaller images (python benchmarks/input.py measures the throughput)"
    )


class Stopwatch:
    """Seconds by the name of an activity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._totals: dict[str, float] = {}
        self._spans: deque[tuple[str, float]] = deque(maxlen=_RECENT)

    def now(self) -> float:
        """Return the current time in seconds."""
        return self._clock()

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a name."""
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self._totals[name] = self._totals.get(name, 0.0) + seconds
            if name in _IN_STEPS:
                self._spans.append((name, seconds))

    def total(self, name: str) -> float:
        """Return the seconds of a name since the start."""
        return self._totals.get(name, 0.0)

    def totals(self) -> dict[str, float]:
        """Return seconds by name since the start."""
        return dict(self._totals)

    def recent_share(self, name: str) -> float:
        """Return the share of a name, 0 .. 1, in the last hundred spans of steps, without the time between steps."""
        everything = sum(seconds for _, seconds in self._spans)
        return sum(seconds for span, seconds in self._spans if span == name) / everything if everything else 0.0
