"""From which score on detections are kept: the threshold of the best F1, the harmonic mean of precision and recall."""

from typing import NamedTuple

import numpy as np


class BestThreshold(NamedTuple):
    """Of detections with at least this score; `score` is NaN where nothing that is found is right."""

    score: float
    precision: float
    recall: float
    f1: float


def best_threshold(scores: np.ndarray, right: np.ndarray, wanted: int) -> BestThreshold:
    """Of n detections, `right` [n] bool, of objects of which so many are `wanted`; the highest of equally good thresholds."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(right[order])
    last = np.append(scores[1:] < scores[:-1], True)[: len(scores)]  # a threshold keeps all of equal scores
    scores, hits, kept = scores[last], hits[last], np.flatnonzero(last) + 1
    if not wanted or not hits.any():
        return BestThreshold(np.nan, 0.0, 0.0, 0.0)
    f1 = 2 * hits / (kept + wanted)
    best = int(f1.argmax())
    return BestThreshold(float(scores[best]), float(hits[best] / kept[best]), float(hits[best] / wanted), float(f1[best]))
