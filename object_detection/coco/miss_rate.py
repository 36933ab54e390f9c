"""Score thresholds with a guaranteed miss rate: on new images, at most a stated share of the objects is missed.

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.score_thresholds import rounded_down

ALL_CLASSES = "all classes"
_MOST_IMAGES = 2**24  # times the given ones; more are not worth stating
_STEP, _LAST_NODE = 1 / 16, 30.0  # of the integral in `_tail_probability`: errors below 1e-9


@dataclass(frozen=True, kw_only=True)
class MissRateThreshold:
    """The highest score threshold with the guaranteed miss rate, for one class or for all classes together.

    Attributes:
        score: None if the images do not give the guarantee at any threshold.
        miss_rate: measured share of missed objects, at the threshold; without one, at any score.
        false_positives: wrong detections per image, as for `miss_rate`.
        objects: number of objects to be found.
        images: number of images that have such objects.
        images_needed: without a threshold, the number of such images that would give one if the detector misses the
            same share at any score; None with a threshold, or if that share is too large.
    """

    score: float | None
    miss_rate: float
    false_positives: float
    objects: int
    images: int
    images_needed: int | None

    @property
    def shortfall(self) -> str:
        """Return why there is no threshold; empty if there is one."""
        if self.score is not None:
            return ""
        if not self.objects:
            return "no objects"
        missed = f"the detector misses {self.miss_rate:.1%} at any score"
        return f"{missed}, about {self.images_needed} such images are needed" if self.images_needed else missed


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
        width = max(len(line[0]) for line in lines)
        texts = [
            f"{name:<{width}}"
            + "".join(f"  {value:>{size}}" for value, size in zip(values, (9, 6, 11, 7, 6), strict=True))
            + f"  {shortfall}"
            for name, *values, shortfall in lines
        ]
        return "\n".join([f"score thresholds for {self.meaning}", *(text.rstrip() for text in texts)])

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


def object_scores(comparison: Comparison) -> np.ndarray:
    """Return the score of the detection that finds each of G objects at IoU 0.5, rounded down; -1: none finds it."""
    found, scores = comparison.outcomes.right, np.full(len(comparison.objects.images), -1.0)
    scores[comparison.outcomes.matched_objects[found]] = rounded_down(comparison.scores[found])
    return scores


def miss_rate_thresholds(comparison: Comparison, *, miss_rate: float, confidence: float) -> MissRateThresholds:
    """Return the threshold of each class, and of all classes together, at IoU 0.5.

    Args:
        comparison: detections on images that the detector was not trained on.
        miss_rate: largest share of missed objects on new images of the same kind, above 0 and below 1.
        confidence: probability, over the choice of the images, that the guarantee holds.
    """
    to_be_found, wrong = ~comparison.flags.ignored, comparison.outcomes.wrong
    found_by, scores = object_scores(comparison), comparison.scores.astype(np.float64)

    def threshold(objects: np.ndarray, detections: np.ndarray) -> MissRateThreshold:
        false_scores, objects = scores[detections & wrong], objects & to_be_found
        images = comparison.objects.images[objects]
        score, missed, needed = _highest_threshold(found_by[objects], images, miss_rate=miss_rate, risk=1 - confidence)
        return MissRateThreshold(
            score=score,
            miss_rate=missed,
            false_positives=float((false_scores >= (score or 0)).sum() / max(len(comparison.image_ids), 1)),
            objects=len(images),
            images=len(np.unique(images)),
            images_needed=needed,
        )

    classes = {
        name: threshold(comparison.objects.classes == k, comparison.detections.classes == k)
        for k, name in enumerate(comparison.names)
    }
    everything = threshold(np.ones(len(to_be_found), bool), np.ones(len(scores), bool))
    return MissRateThresholds(miss_rate=miss_rate, confidence=confidence, overall=everything, classes=classes)


def _highest_threshold(
    scores: np.ndarray, images: np.ndarray, *, miss_rate: float, risk: float
) -> tuple[float | None, float, int | None]:
    """Return threshold, measured miss rate and needed images, see `MissRateThreshold`, for n objects.

    scores: [n] score of the detection that finds the object; -1: none. images: [n] numbers.
    """
    if not len(scores):
        return None, 0.0, None
    _, images = np.unique(images, return_inverse=True)
    sizes = np.bincount(images)
    candidates = np.unique(scores[scores >= 0])

    def exceeds(threshold: float, times: float = 1.0) -> bool:
        """Return whether the rate may be exceeded, according to the images, each counted several times."""
        missed = np.bincount(images, weights=scores < threshold)
        values, counts = np.unique(missed - miss_rate * sizes, return_counts=True)
        values, counts = np.append(values, (1 - miss_rate) * sizes.max()), np.append(times * counts, 1.0)
        return _tail_probability(values, counts) > risk

    place = bisect_right(candidates, False, key=exceeds) - 1
    score = float(candidates[place]) if place >= 0 else None
    measured = float((scores < (score or 0)).mean())
    if score is not None or measured >= miss_rate:
        return score, measured, None
    low, high = 1.0, 2.0
    while exceeds(0, high) and high < _MOST_IMAGES:
        low, high = high, 2 * high
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if exceeds(0, middle) else (low, middle)
    return None, measured, int(np.ceil(high * len(sizes) - 1e-9))


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
