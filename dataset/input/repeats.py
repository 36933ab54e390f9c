"""How often images come in an epoch: those of rare classes more often (Gupta et al. 2019, LVIS, appendix B)."""

import math

import numpy as np

from dataset.labelled_images import LabelledImages


def repeat_factors(images: LabelledImages, threshold: float) -> np.ndarray:
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
    order = random.permutation(len(factors))  # or neighbours would never be drawn together
    ends, more = np.cumsum(rests[order]), _drawn(factors)
    if more:
        ends = np.append(np.minimum(ends[:-1] * (more / ends[-1]), more), more)  # the sum is a whole number now
        counts[order] += np.diff(np.floor(ends + random.random()), prepend=0.0).astype(np.int64)
    return random.permutation(np.repeat(np.arange(len(factors)), counts))


def _drawn(factors: np.ndarray) -> int:
    """How many images of an epoch are left to chance; the sum is exact, so that the order of the images plays no part."""
    return math.ceil(math.fsum(factors % 1.0))
