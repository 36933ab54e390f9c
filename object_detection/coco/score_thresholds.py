"""Score thresholds with the best F1, the harmonic mean of precision and recall."""

from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.matching import Comparison

MIN_OBJECTS = 10  # objects for a stored threshold, of a class or of all; with fewer, a single detection decides it


class BestThreshold(NamedTuple):
    """The best score threshold and its metrics; `score` is NaN if no detection is correct."""

    score: float
    precision: float
    recall: float
    f1: float


def best_threshold(scores: np.ndarray, right: np.ndarray, num_objects: int) -> BestThreshold:
    """Return the best threshold of n detections, `right` [n] bool, for `num_objects` objects; highest of equals."""
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(right[order])
    last = np.append(scores[1:] < scores[:-1], True)[: len(scores)]  # a threshold keeps all detections of equal scores
    scores, hits, num_detections = scores[last], hits[last], np.flatnonzero(last) + 1
    if not num_objects or not hits.any():
        return BestThreshold(np.nan, 0.0, 0.0, 0.0)
    f1 = 2 * hits / (num_detections + num_objects)
    best = int(f1.argmax())
    return BestThreshold(
        float(scores[best]), float(hits[best] / num_detections[best]), float(hits[best] / num_objects), float(f1[best])
    )


def class_thresholds(comparison: Comparison) -> list[BestThreshold]:
    """Return the best threshold of each class at IoU 0.5."""
    rows = comparison.matching.by_class
    rows = rows[comparison.outcomes.counted[rows]]
    begins = np.searchsorted(comparison.detections.classes[rows], np.arange(len(comparison.names)))
    columns = comparison.scores[rows], comparison.outcomes.right[rows]
    scores, right = (np.split(column, begins)[1:] for column in columns)
    return [best_threshold(*part) for part in zip(scores, right, comparison.class_counts.tolist(), strict=True)]


def overall_threshold(comparison: Comparison) -> BestThreshold:
    """Return the best threshold for all classes together at IoU 0.5."""
    counted = comparison.outcomes.counted
    return best_threshold(
        comparison.scores[counted], comparison.outcomes.right[counted], int(comparison.class_counts.sum())
    )


def thresholds_to_store(comparison: Comparison) -> dict[str, Any]:
    """Return {"overall": score, "classes": {name: score}} as stored with a model.

    {} with fewer than MIN_OBJECTS objects, or if no detection is right.

    A class with fewer than MIN_OBJECTS objects or without a correct detection has no entry: the overall threshold
    applies.
    """
    overall = overall_threshold(comparison).score
    if np.isnan(overall) or comparison.class_counts.sum() < MIN_OBJECTS:
        return {}
    best = zip(comparison.names, class_thresholds(comparison), comparison.class_counts, strict=True)
    return {
        "overall": float(rounded_down(overall)),
        "classes": {
            name: float(rounded_down(threshold.score))
            for name, threshold, count in best
            if count >= MIN_OBJECTS and threshold.f1
        },
    }


def rounded_down(scores: np.ndarray | float) -> np.ndarray:
    """Round down to 4 decimals: scores of an exported file differ by rounding, and must still reach the threshold."""
    return np.floor(np.asarray(scores, np.float64) * 1e4) / 1e4
