"""Whether a score is a probability: scores beside the share of detections that are right (Guo et al. 2017)."""

from typing import NamedTuple

import numpy as np

BINS = 10  # of equal width in 0 .. 1


class Reliability(NamedTuple):
    """What is in each bin; NaN where nothing is."""

    counts: np.ndarray  # [BINS] detections
    scores: np.ndarray  # [BINS] their mean
    precision: np.ndarray  # [BINS] the share of them that is right
    expected_error: float  # expected calibration error: the mean distance of the two, each detection weighing the same


def reliability(scores: np.ndarray, right: np.ndarray) -> Reliability:
    """Of n detections with scores in 0 .. 1, `right` [n] bool; a score on the border of two bins is in the upper one."""
    number = np.minimum((np.asarray(scores, np.float64) * BINS).astype(int), BINS - 1)
    counts = np.bincount(number, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means, precision = (np.bincount(number, weights=values, minlength=BINS) / counts for values in (scores, right))
    error = np.nansum(np.abs(means - precision) * counts) / max(len(number), 1)
    return Reliability(counts, means, precision, float(error))
