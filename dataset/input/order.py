"""The order of the endless stream of training images, a function of the seed."""

from functools import lru_cache

import numpy as np

from dataset.input.repeats import epoch_length, repeated


class StreamOrder:
    """Which record stands at which position of the endless stream.

    An epoch has each of `count` records once, or as often as `factors` [count] say (see `repeated`); all epochs are equally
    long, so that a position alone tells its epoch.
    """

    def __init__(self, count: int, seed: int, factors: np.ndarray | None = None):
        self._length = count if factors is None else epoch_length(factors)

        def permutation(epoch: int) -> np.ndarray:
            random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
            return random.permutation(count) if factors is None else repeated(factors, random)

        # Threads of one pipeline are at most one epoch apart, short of data sets smaller than what is prefetched.
        self._permutation = lru_cache(maxsize=4)(permutation)

    def records(self, positions: np.ndarray) -> np.ndarray:
        """Record numbers at positions [n] of the stream: [n] int64."""
        epochs, places = np.divmod(positions, self._length)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            numbers[inside] = self._permutation(int(epoch))[places[inside]]
        return numbers
