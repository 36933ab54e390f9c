"""The order of the endless stream of training images, a function of the seed."""

from functools import lru_cache

import numpy as np


class StreamOrder:
    """Which record stands at which position of the endless stream."""

    def __init__(self, count: int, seed: int):
        self._count = count
        # Threads of one pipeline are at most one epoch apart, short of data sets smaller than what is prefetched.
        self._permutation = lru_cache(maxsize=4)(
            lambda epoch: np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count))

    def records(self, positions: np.ndarray) -> np.ndarray:
        """Record numbers at positions [n] of the stream: [n] int64."""
        epochs, places = np.divmod(positions, self._count)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            numbers[inside] = self._permutation(int(epoch))[places[inside]]
        return numbers
