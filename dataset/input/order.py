"""The order of the endless stream of training images, a function of the seed, and how often images come in an epoch: those of
rare classes more often (Gupta et al. 2019, LVIS, appendix B)."""

import math
from functools import lru_cache

import numpy as np

from dataset.records.labeled_images import LabeledImages


def repeat_factors(images: LabeledImages, threshold: float) -> np.ndarray:
    """How often each image should come in an epoch, [n] float64, at least once: as its rarest class asks.

    A class in a share f of the images asks for sqrt(threshold / f), or once where it is in more.
    """
    shares = images.images_with() / max(len(images), 1)
    of_classes = np.sqrt(np.maximum(threshold / np.where(shares > 0, shares, np.inf), 1.0))
    factors = np.ones(len(images))
    np.maximum.at(factors, images.owners, of_classes[images.classes])
    return factors


def epoch_length(factors: np.ndarray) -> int:
    """Images of an epoch, the same number in each."""
    return int(np.floor(factors).sum()) + _drawn(factors)


def repeated(factors: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The image numbers of one epoch, `epoch_length` of them in random order.

    Each comes as often as the whole part of its factor says, and once more as often as chance makes of the rest: drawn all at
    once (systematic sampling), so that the sum is always the same.
    """
    counts, rests = np.floor(factors).astype(np.int64), factors % 1.0
    order = random.permutation(len(factors))  # or neighbors would never be drawn together
    ends, more = np.cumsum(rests[order]), _drawn(factors)
    if more:
        ends = np.append(np.minimum(ends[:-1] * (more / ends[-1]), more), more)  # the sum is a whole number now
        counts[order] += np.diff(np.floor(ends + random.random()), prepend=0.0).astype(np.int64)
    return random.permutation(np.repeat(np.arange(len(factors)), counts))


def _drawn(factors: np.ndarray) -> int:
    """How many images of an epoch are left to chance; the sum is exact, so that the order of the images plays no part."""
    return math.ceil(math.fsum(factors % 1.0))


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
