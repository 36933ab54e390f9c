"""The seeded order of the infinite stream of training images, and repeat-factor sampling.

Repeat-factor sampling shows images of rare classes more often per epoch (Gupta et al. 2019, LVIS, appendix B).
"""

import math
from functools import lru_cache

import numpy as np

from dataset.records.labeled_images import LabeledImages


def repeat_factors(images: LabeledImages, threshold: float) -> np.ndarray:
    """Return the repeat factor of each image per epoch, [n] float64, at least 1: the maximum over its classes.

    A class in a fraction f of the images has the repeat factor max(1, sqrt(threshold / f)).
    """
    shares = images.images_with() / max(len(images), 1)
    of_classes = np.sqrt(np.maximum(threshold / np.where(shares > 0, shares, np.inf), 1.0))
    factors = np.ones(len(images))
    np.maximum.at(factors, images.owners, of_classes[images.classes])
    return factors


def epoch_length(factors: np.ndarray) -> int:
    """Return the number of images per epoch, which is the same for all epochs."""
    return int(np.floor(factors).sum()) + _drawn(factors)


def repeated(factors: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the image numbers of one epoch, `epoch_length` of them in random order.

    Each appears as often as the integer part of its factor, and once more with the probability of the fractional part.
    The fractional parts are drawn together (systematic sampling), so that the sum is constant.
    """
    counts, rests = np.floor(factors).astype(np.int64), factors % 1.0
    order = random.permutation(len(factors))  # otherwise neighbors would never be drawn together
    ends, more = np.cumsum(rests[order]), _drawn(factors)
    if more:
        ends = np.append(np.minimum(ends[:-1] * (more / ends[-1]), more), more)  # makes the sum an integer
        counts[order] += np.diff(np.floor(ends + random.random()), prepend=0.0).astype(np.int64)
    return random.permutation(np.repeat(np.arange(len(factors)), counts))


def _drawn(factors: np.ndarray) -> int:
    """Return the number of images drawn from the fractional parts; the sum is exact in any order of the images."""
    return math.ceil(math.fsum(factors % 1.0))


class StreamOrder:
    """Maps positions of the infinite stream to records.

    An epoch has each of `count` records once, or according to `factors` [count] (see `repeated`); all epochs have the
    same length, so that a position determines its epoch.
    """

    def __init__(self, count: int, seed: int, factors: np.ndarray | None = None):
        self._length = count if factors is None else epoch_length(factors)

        def permutation(epoch: int) -> np.ndarray:
            random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
            return random.permutation(count) if factors is None else repeated(factors, random)

        # Threads of one pipeline are at most one epoch apart, unless the data set is smaller than the prefetched part.
        self._permutation = lru_cache(maxsize=4)(permutation)

    def records(self, positions: np.ndarray) -> np.ndarray:
        """Return the record numbers at positions [n] of the stream: [n] int64."""
        epochs, places = np.divmod(positions, self._length)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            numbers[inside] = self._permutation(int(epoch))[places[inside]]
        return numbers
