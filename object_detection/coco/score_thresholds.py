"""Score thresholds: with the best F1 (harmonic mean of precision and recall), and with a guaranteed miss rate.

The miss rate is guaranteed if, on new images, at most a stated share of the objects is missed.
An object is missed at a threshold if no detection of its class with at least this score is matched with it at IoU 0.5.
Matching is by falling score, so a higher threshold removes matches and changes none: the misses of every image rise
with the threshold, and one test at the stated confidence is valid for the highest threshold that passes it
(risk-controlling prediction sets, Bates et al. 2021, https://arxiv.org/abs/2101.02703, theorem 1).

The images are independent; the objects of one image are not. With n_i objects in image i, m_i of them missed, and the
rate a, the miss rate sum(m) / sum(n) of all images is at most a if the mean of x_i = m_i - a n_i is at most 0. The test
is Gaffke's. For images with one object each it is the Clopper-Pearson bound; for others it was a conjecture without a
counterexample until the proof cited below, which this project has not checked. The threshold passes if

    P(sum_i E_i x_i + E_0 (1 - a) max(n) > 0) <= 1 - confidence,    E ~ Exponential(1), independent,

that is, if a Bayesian bootstrap that knows one more image, as full as the fullest and completely missed, seldom exceeds
the rate (Gaffke 2005; Learned-Miller and Thomas 2019, https://arxiv.org/abs/1905.06208; proof of its validity: Vlassis
and Thomas 2026, https://arxiv.org/abs/2607.08415). The largest number of objects per image is taken as known: the
guarantee is for images without more of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.matching import Comparison

MIN_OBJECTS = 10  # objects for a stored threshold, of a class or of all; with fewer, a single detection decides it
ALL_CLASSES = "all classes"
_STEP, _LAST_NODE = 1 / 16, 30.0  # of the integral in `_tail_probability`: errors below 1e-9


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


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of text as lines with aligned columns; all but the first and the last are aligned to the right."""
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], [*widths[:-1], 0])]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


@dataclass(frozen=True, kw_only=True)
class MissRateThreshold:
    """The highest score threshold with the guaranteed miss rate, for one class or for all classes together.

    Attributes:
        score: None if the images do not give the guarantee at any threshold.
        miss_rate: measured share of missed objects, at the threshold; without one, at any score.
        false_positives: wrong detections per image, as for `miss_rate`.
        objects: number of objects to be found.
        images: number of images that have such objects.
        shortfall: why there is no threshold; empty if there is one.
    """

    score: float | None
    miss_rate: float
    false_positives: float
    objects: int
    images: int
    shortfall: str


@dataclass(frozen=True, kw_only=True)
class MissRateThresholds:
    """Thresholds for a miss rate: each holds with the confidence, not all of them at once."""

    miss_rate: float
    confidence: float
    overall: MissRateThreshold
    classes: dict[str, MissRateThreshold]

    @property
    def meaning(self) -> str:
        """The guarantee as a phrase."""
        return f"at most {self.miss_rate:.3g} of the objects missed with {self.confidence:.3g} confidence"

    def rows(self) -> list[tuple[str, ...]]:
        """Return name, threshold, miss rate, false positives per image, objects, images and shortfall as text."""
        return [
            (
                name,
                "-" if one.score is None else f"{one.score:.4f}",
                f"{one.miss_rate:.4f}",
                f"{one.false_positives:.2f}",
                str(one.objects),
                str(one.images),
                one.shortfall,
            )
            for name, one in {**self.classes, ALL_CLASSES: self.overall}.items()
        ]

    def table(self) -> str:
        """Return the thresholds as plain text of several lines."""
        lines = [("class", "threshold", "missed", "false/image", "objects", "images", ""), *self.rows()]
        return f"score thresholds for {self.meaning}\n{text_table(lines)}"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`."""
        classes = {name: vars(one) for name, one in self.classes.items()}
        return {**vars(self), "overall": vars(self.overall), "classes": classes}

    def to_store(self, *, otherwise: float) -> dict[str, Any]:
        """Return the scores as stored with a model, beside the guarantee; {} if there is no threshold at all.

        otherwise: overall score without an overall threshold, for the classes without one of their own.
        """
        classes = {name: one.score for name, one in self.classes.items() if one.score is not None}
        if self.overall.score is None and not classes:
            return {}
        entries = {**self.classes, ALL_CLASSES: self.overall}
        return {
            "meaning": self.meaning,
            "not_guaranteed": [name for name, one in entries.items() if one.score is None and one.objects],
            "overall": otherwise if self.overall.score is None else self.overall.score,
            "classes": classes,
        }


def miss_rate_thresholds(comparison: Comparison, *, miss_rate: float, confidence: float) -> MissRateThresholds:
    """Return the threshold of each class, and of all classes together, at IoU 0.5.

    Args:
        comparison: detections on images that the detector was not trained on.
        miss_rate: largest share of missed objects on new images of the same kind, above 0 and below 1.
        confidence: probability, over the choice of the images, that the guarantee holds.
    """
    to_be_found, outcomes = ~comparison.flags.ignored, comparison.outcomes
    scores, found_by = comparison.scores.astype(np.float64), np.full(len(to_be_found), -1.0)  # -1: nothing finds it
    found_by[outcomes.matched_objects[outcomes.right]] = rounded_down(scores[outcomes.right])

    def threshold(objects: np.ndarray, detections: np.ndarray) -> MissRateThreshold:
        false_scores, objects = scores[detections & outcomes.wrong], objects & to_be_found
        images = comparison.objects.images[objects]
        score = _highest_threshold(found_by[objects], images, miss_rate=miss_rate, risk=1 - confidence)
        missed = float((found_by[objects] < (score or 0)).mean()) if len(images) else 0.0
        shortfall = "" if score is not None else f"the detector misses {missed:.1%} at any score"
        if score is None and missed < miss_rate:
            shortfall = "too few images" if len(images) else "no objects"
        return MissRateThreshold(
            score=score,
            miss_rate=missed,
            false_positives=float((false_scores >= (score or 0)).sum() / max(len(comparison.image_ids), 1)),
            objects=len(images),
            images=len(np.unique(images)),
            shortfall=shortfall,
        )

    classes = {
        name: threshold(comparison.objects.classes == k, comparison.detections.classes == k)
        for k, name in enumerate(comparison.names)
    }
    everything = threshold(np.ones(len(to_be_found), bool), np.ones(len(scores), bool))
    return MissRateThresholds(miss_rate=miss_rate, confidence=confidence, overall=everything, classes=classes)


def _highest_threshold(scores: np.ndarray, images: np.ndarray, *, miss_rate: float, risk: float) -> float | None:
    """Return the highest threshold with the miss rate for n objects; None if there is none.

    scores: [n] score of the detection that finds the object; -1: none. images: [n] numbers.
    """
    _, images = np.unique(images, return_inverse=True)
    sizes, candidates = np.bincount(images), np.unique(scores[scores >= 0])

    def exceeds(threshold: float) -> bool:
        """Return whether the rate may be exceeded, according to the images."""
        missed = np.bincount(images, weights=scores < threshold)
        values, counts = np.unique(missed - miss_rate * sizes, return_counts=True)
        values, counts = np.append(values, (1 - miss_rate) * sizes.max()), np.append(counts, 1.0)
        return _tail_probability(values, counts) > risk

    place = bisect_right(candidates, False, key=exceeds) - 1
    return float(candidates[place]) if place >= 0 else None


def _tail_probability(values: np.ndarray, counts: np.ndarray) -> float:
    """Return P(sum of values * G > 0) for independent G ~ Gamma(counts), [n] each; one value at least is positive.

    The inverse Laplace transform of the sum's moment generating function, integrated through its saddle point, where
    the integrand neither oscillates nor cancels, also for thousands of images (Lugannani and Rice 1980).
    """
    low, high = 0.0, 1 / values.max()
    for _ in range(60):
        saddle = (low + high) / 2
        below = (counts * values / (1 - values * saddle)).sum() < 1 / saddle
        low, high = (saddle, high) if below else (low, saddle)
    deviation = np.sqrt(1 + (counts * (values * saddle / (1 - values * saddle)) ** 2).sum())
    nodes = np.arange(0, _LAST_NODE, _STEP)
    path = saddle * (1 + 1j * np.sinh(nodes) / deviation)  # the substitution makes polynomial tails exponential
    heights = (np.exp(-np.log(1 - path[:, None] * values) @ counts) / path).real * np.cosh(nodes)
    return float((heights.sum() - heights[0] / 2) * _STEP * saddle / deviation / np.pi)
