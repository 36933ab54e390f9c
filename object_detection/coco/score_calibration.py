"""Score thresholds with the best F1, the harmonic mean of precision and recall, and calibrated scores.

A calibrated score is the probability that a detection is correct, by beta calibration of each class. A detection is
correct if it finds an object of its class at IoU 0.5, as COCO matches them. The probability at a score s is

    1 / (1 + exp(-(a ln(s) - b ln(1 - s) + c))),    a, b >= 0

(Kull et al. 2017, https://proceedings.mlr.press/v54/kull17a.html). It rises with s, so that the order of a class's
detections, and with it every AP, stays the same. a = b = 1, c = 0 changes nothing; a normal prior around these values
keeps a class with few detections near them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.matching import Comparison

MIN_OBJECTS = 10  # objects for a stored threshold, of a class or of all; with fewer, a single detection decides it
BINS = 10  # score intervals of equal width in 0 .. 1
_LOWEST = 1e-7  # scores are limited to this and 1 - this
_TOLERANCE, _MOST_STEPS = 1e-8, 100  # of Newton's method


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


class Reliability(NamedTuple):
    """Scores and precision (fraction of correct detections) in each bin (Guo et al. 2017); NaN in an empty bin."""

    counts: np.ndarray  # [BINS] detections
    scores: np.ndarray  # [BINS] mean score
    precision: np.ndarray  # [BINS] fraction of correct detections
    expected_error: float  # expected calibration error: mean absolute difference of the two, weighted by counts


class ScoreMap(NamedTuple):
    """Map from the scores of a class to probabilities; these values change nothing."""

    a: float = 1.0
    b: float = 1.0
    c: float = 0.0

    def __call__(self, scores: np.ndarray | float) -> np.ndarray:
        """Return the probabilities [N] at scores [N]."""
        return np.exp(-np.logaddexp(0, -_features(scores) @ np.array(self)))


@dataclass(frozen=True, kw_only=True)
class ClassCalibration:
    """Calibration of one class.

    Attributes:
        error_before: expected calibration error of the scores.
        error_after: the same of calibrated scores, each by a map that was fitted to the other half of the images; None
            if the class has too few objects.
        objects: number of objects.
        map: fitted to all images; None if it is not better on the other half: the scores stay as they are.
    """

    error_before: float
    error_after: float | None
    objects: int
    map: ScoreMap | None

    @property
    def reason(self) -> str:
        """Return why the scores stay as they are; empty if they are calibrated."""
        if self.map:
            return ""
        return f"fewer than {MIN_OBJECTS} objects" if self.error_after is None else "not better on held-out images"


@dataclass(frozen=True, kw_only=True)
class ScoreCalibration:
    """Calibration of each class by name; `before` and `after`: reliability of all scores, as for the errors."""

    classes: dict[str, ClassCalibration]
    before: Reliability
    after: Reliability

    def rows(self) -> list[tuple[str, ...]]:
        """Return class, expected calibration error before and after, objects, and why a class is not calibrated."""
        return [
            (
                name,
                f"{one.error_before:.4f}",
                "-" if one.error_after is None else f"{one.error_after:.4f}",
                str(one.objects),
                one.reason,
            )
            for name, one in self.classes.items()
        ]

    def table(self) -> str:
        """Return the errors as plain text of several lines."""
        total = ("all classes", f"{self.before.expected_error:.4f}", f"{self.after.expected_error:.4f}", "", "")
        lines = [("class", "before", "after", "objects", ""), *self.rows(), total]
        width = max(len(name) for name, *_ in lines)
        return "expected calibration error of the scores, on images that the calibration was not fitted to" + "".join(
            f"\n{name:<{width}}  {before:>6}  {after:>6}  {objects:>7}  {reason}".rstrip()
            for name, before, after, objects, reason in lines
        )

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`."""
        return {
            "expected_calibration_error": {
                "before": self.before.expected_error,
                "after": self.after.expected_error,
            },
            "classes": {
                name: {**vars(one), "map": one.map and one.map._asdict()} for name, one in self.classes.items()
            },
        }

    def to_store(self) -> dict[str, list[float]]:
        """Return a, b and c of each calibrated class, as stored with a model."""
        return {name: list(one.map) for name, one in self.classes.items() if one.map}


def reliability(scores: np.ndarray, right: np.ndarray) -> Reliability:
    """Return the calibration of n scores in 0 .. 1, `right` [n] bool; a score between two bins is in the upper."""
    number = np.minimum((np.asarray(scores, np.float64) * BINS).astype(int), BINS - 1)
    counts = np.bincount(number, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means, precision = (np.bincount(number, weights=values, minlength=BINS) / counts for values in (scores, right))
    error = np.nansum(np.abs(means - precision) * counts) / max(len(number), 1)
    return Reliability(counts, means, precision, float(error))


def calibrate_scores(comparison: Comparison, *, seed: int = 0) -> ScoreCalibration:
    """Return the calibration of each class, kept where it is better on images that it was not fitted to.

    Better are a lower expected calibration error and a lower log loss: of few detections the first alone also falls by
    chance, in half of the classes whose scores need no calibration.

    Args:
        comparison: detections on images that the detector was not trained on.
        seed: seed of the division of the images into two halves.
    """
    counted = comparison.outcomes.counted
    scores, right = comparison.scores[counted].astype(np.float64), comparison.outcomes.right[counted]
    classes = comparison.detections.classes[counted]
    halves = np.random.default_rng(seed).permutation(len(comparison.image_ids)) % 2
    halves = halves[comparison.detections.images[counted]]
    calibrated, entries = scores.copy(), {}
    for k, name in enumerate(comparison.names):
        rows, objects = np.flatnonzero(classes == k), int(comparison.class_counts[k])
        before, after, score_map = reliability(scores[rows], right[rows]).expected_error, None, None
        if objects >= MIN_OBJECTS:
            held_out = np.empty(len(rows))
            for half in (0, 1):
                is_fitted = halves[rows] == half
                half_map = fitted_map(scores[rows[is_fitted]], right[rows[is_fitted]])
                held_out[~is_fitted] = half_map(scores[rows[~is_fitted]])
            after, fitted = reliability(held_out, right[rows]).expected_error, fitted_map(scores[rows], right[rows])
            is_better = after < before and _log_loss(held_out, right[rows]) < _log_loss(scores[rows], right[rows])
            if is_better and fitted.a + fitted.b > 0:
                calibrated[rows], score_map = held_out, fitted
        entries[name] = ClassCalibration(error_before=before, error_after=after, objects=objects, map=score_map)
    return ScoreCalibration(classes=entries, before=reliability(scores, right), after=reliability(calibrated, right))


def calibrated_scores(scores: np.ndarray, category_ids: np.ndarray, maps: Mapping[int, ScoreMap]) -> np.ndarray:
    """Return the calibrated scores [N] of detections as float32; a score of a category without a map is unchanged."""
    calibrated = np.array(scores, np.float32)
    for category_id, score_map in maps.items():
        rows = category_ids == category_id
        calibrated[rows] = score_map(scores[rows])
    return calibrated


def fitted_map(scores: np.ndarray, right: np.ndarray) -> ScoreMap:
    """Return the most probable map for n scores of detections, `right` [n] bool, by Newton's method."""
    prior = np.array(ScoreMap())
    is_free, coefficients = np.ones(3, bool), prior
    while True:
        features = _features(scores)[:, is_free]
        found = _minimum(features, right, prior[is_free])
        coefficients = np.zeros(3)
        coefficients[is_free] = found
        if (coefficients[:2] >= 0).all():
            return ScoreMap(*coefficients.tolist())
        is_free[:2] &= coefficients[:2] > 0  # a coefficient at its limit of 0


def _minimum(features: np.ndarray, right: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return the coefficients [m] of the logistic regression on features [n, m]."""

    def loss(coefficients: np.ndarray) -> float:
        logits = features @ coefficients
        return (np.logaddexp(0, logits) - right * logits).sum() + ((coefficients - prior) ** 2).sum() / 2

    coefficients = prior
    for _ in range(_MOST_STEPS):
        probabilities = np.exp(-np.logaddexp(0, -features @ coefficients))
        gradient = features.T @ (probabilities - right) + coefficients - prior
        curvature = (features.T * (probabilities * (1 - probabilities))) @ features + np.eye(len(prior))
        step, lowest = np.linalg.solve(curvature, gradient), loss(coefficients)
        while loss(coefficients - step) > lowest and abs(step).max() > _TOLERANCE:
            step = step / 2
        coefficients = coefficients - step
        if abs(step).max() <= _TOLERANCE:
            break
    return coefficients


def _log_loss(probabilities: np.ndarray, right: np.ndarray) -> float:
    limited = np.clip(probabilities, _LOWEST, 1 - _LOWEST)
    return float(-np.log(np.where(right, limited, 1 - limited)).sum())


def _features(scores: np.ndarray | float) -> np.ndarray:
    limited = np.clip(np.asarray(scores, np.float64), _LOWEST, 1 - _LOWEST)
    return np.stack((np.log(limited), -np.log1p(-limited), np.ones_like(limited)), axis=-1)
