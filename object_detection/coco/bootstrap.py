"""Intervals of the COCO metrics and of differences, by a bootstrap over images (Efron and Tibshirani 1993).

A resample draws as many images as there are, with replacement, and is a vector of multiplicities. Matching happens
within an image, so its matches, computed once, are those of the original images: cumulative sums weighted by
multiplicity give the curves. Of the copies of a correct detection the last has the highest precision, hence only that
one is computed. The results equal those of an evaluation of the resampled set, in which the copies of an image follow
each other. Where two detections of one class in one image have equal scores, the copies of each detection follow each
other instead.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.matching import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    MAX_DETECTIONS,
    RECALL_THRESHOLDS,
    Comparison,
    outside_ranges,
)
from object_detection.coco.measures import MEASURE_NAMES

RESAMPLES = 1000  # enough for the 2.5 % quantiles
_CONFIDENCE = 0.95
_CHUNK_SIZE = 1 << 18  # detections times resamples in one chunk: its arrays fit in the cache
_MOST_SUMMED = 8e8  # numbers that are summed in about 10 seconds on two cores
_AT_50, _AT_75 = (int(np.argmin(abs(IOU_THRESHOLDS - threshold))) for threshold in (0.5, 0.75))
_OF_CLASSES = {name: MEASURE_NAMES.index(name) for name in ("AP", "AP50", "AP75", "APs", "APm", "APl")}


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The 12 COCO metrics of K classes in a data set and in R resamples of it; NaN where a class has no object.

    The differences of two detectors on the same images are those of their samples, if the resamples are the same.
    """

    by_class: np.ndarray  # [K, 12, 1 + R], the metrics in the order of MEASURE_NAMES, the data set itself first

    @cached_property
    def numbers(self) -> np.ndarray:
        """[12, 1 + R]: means over the classes that have objects; NaN without one."""
        present = ~np.isnan(self.by_class)
        sums, counts = np.where(present, self.by_class, 0.0).sum(axis=0), present.sum(axis=0)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)


@dataclass(frozen=True, kw_only=True)
class ClassRows:
    """The D detections of a class by falling score, of which n match an object, and its objects."""

    images: np.ndarray  # [D]
    inside: np.ndarray  # [D, A] bool: the area lies in the range
    places: np.ndarray  # [n] rows of the matching ones among D
    ranks: np.ndarray  # [n] in their image
    matched: np.ndarray  # [n, A, T] bool
    right: np.ndarray  # [n, A, T] bool: the matched object is counted
    object_images: tuple[np.ndarray, ...]  # A times: image of each counted object


def interval(samples: np.ndarray, *, images: int) -> tuple[float, float]:
    """Return the 95 % interval of a metric or of a difference, [1 + R]; NaN if there is nothing to measure.

    It has the quantiles of the resamples, shifted so that their mean is the measured value: interpolated precision is
    higher in a resample than in its data set because copies of an image agree with each other. With few images it is
    wider by the factor between Student's t and the normal distribution, and by that of an unbiased standard deviation.
    """
    measured, present = samples[0], samples[1:][~np.isnan(samples[1:])]
    if np.isnan(measured) or not present.size:
        return np.nan, np.nan
    low, high = np.quantile(present - present.mean(), ((1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2)).tolist()
    widening = 1 + 1.7 / (images - 1)  # first order in 1 / images: (1.96^2 + 1) / 4 of t, 1/2 of the deviation
    return measured + widening * low, measured + widening * high


def multiplicities(num_images: int, resamples: int, *, seed: int = 0) -> np.ndarray:
    """Return how often each of I images is in the data set, which is once, and in each resample: int32 [1 + R, I]."""
    random, weights = np.random.default_rng(seed), np.ones((1 + resamples, num_images), np.int32)
    for row in weights[1:]:
        row[:] = np.bincount(random.integers(num_images, size=num_images), minlength=num_images)
    return weights


def default_resamples(comparison: Comparison) -> int:
    """Return RESAMPLES, or 0 if they would take more than about 10 seconds; depends on the sizes alone."""
    summed = len(comparison.matching.by_class) + int(comparison.matching.matched.sum())
    return RESAMPLES if RESAMPLES * summed <= _MOST_SUMMED else 0


def resampled(comparison: Comparison, weights: np.ndarray) -> Samples:
    """Return the metrics with the `multiplicities` [1 + R, I] of the comparison's images."""
    by_class = np.empty((len(comparison.names), len(MEASURE_NAMES), len(weights)))
    tasks = []
    for k, rows in enumerate(_class_rows(comparison)):
        step = max(1, _CHUNK_SIZE // max(1, len(rows.images)))
        tasks += [(k, rows, slice(first, first + step)) for first in range(0, len(weights), step)]

    def measure(k: int, rows: ClassRows, chunk: slice) -> None:
        by_class[k, :, chunk] = _class_measures(rows, weights[chunk])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy's loops release the interpreter lock
        for _ in pool.map(measure, *zip(*tasks, strict=True)):
            pass
    return Samples(by_class=by_class)


def intervals(comparison: Comparison, resamples: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the 95 % intervals of "numbers" and of "class_ap" by name, without those that cannot be measured.

    {} without resamples or with a single image, which has no spread.
    """
    images = len(comparison.image_ids)
    if not resamples or images < 2:
        return {}
    samples = resampled(comparison, multiplicities(images, resamples))

    def by_name(names: Sequence[str], values: np.ndarray) -> dict[str, tuple[float, float]]:
        ends = (np.clip(interval(of_metric, images=images), 0, 1).tolist() for of_metric in values)
        return {name: (low, high) for name, (low, high) in zip(names, ends, strict=True) if not np.isnan(low)}

    return {
        "numbers": by_name(MEASURE_NAMES, samples.numbers),
        "class_ap": by_name(comparison.names, samples.by_class[:, 0]),
    }


def _class_rows(comparison: Comparison) -> Iterator[ClassRows]:
    """Yield the rows of each class."""
    matching, detections, objects = comparison.matching, comparison.detections, comparison.objects
    classes = np.arange(len(comparison.names) + 1)
    ends = np.searchsorted(detections.classes[matching.by_class], classes)
    match_ends = np.searchsorted(matching.places, ends)
    counted = ~outside_ranges(objects.areas) & ~comparison.flags.ignored[:, None]
    by_class = np.argsort(objects.classes, kind="stable")
    object_ends = np.searchsorted(objects.classes[by_class], classes)
    for k in classes[:-1].tolist():
        rows, here = matching.by_class[ends[k] : ends[k + 1]], slice(match_ends[k], match_ends[k + 1])
        there = by_class[object_ends[k] : object_ends[k + 1]]
        yield ClassRows(
            images=detections.images[rows],
            inside=~outside_ranges(detections.areas[rows]),
            places=matching.places[here] - ends[k],
            ranks=matching.ranks[matching.places[here]],
            matched=matching.matched[here],
            right=matching.matched[here] & ~matching.to_ignore[here],
            object_images=tuple(objects.images[there[inside]] for inside in counted[there].T),
        )


def _class_measures(rows: ClassRows, weights: np.ndarray) -> np.ndarray:
    """Return the 12 metrics of a class, [12, R]; NaN in a resample without a counted object."""
    sizes, thresholds = len(AREA_RANGES), len(IOU_THRESHOLDS)
    precision = np.full((sizes, thresholds, len(weights)), np.nan)
    recall = np.full((sizes, thresholds, len(weights)), np.nan)
    limited = np.full((len(MAX_DETECTIONS) - 1, thresholds, len(weights)), np.nan)  # recall with fewer detections
    for a in range(sizes):
        num_objects = weights[:, rows.object_images[a]].sum(axis=1)
        present = np.flatnonzero(num_objects)
        if not present.size:
            continue
        num_objects, here = num_objects[present], weights[present] if len(present) < len(weights) else weights
        needed = _needed_hits(num_objects)
        inside = np.flatnonzero(rows.inside[:, a])
        before = _cumulative(here, rows.images[inside])[:, np.searchsorted(inside, rows.places)]
        for t in range(thresholds):
            right = np.flatnonzero(rows.right[:, a, t])
            taken = np.flatnonzero(rows.matched[:, a, t] & rows.inside[rows.places, a])
            hits = _cumulative(here, rows.images[rows.places[right]])
            taken_before = _cumulative(here, rows.images[rows.places[taken]])[:, np.searchsorted(taken, right)]
            precision[a, t, present] = _average_precision(hits, before[:, right] - taken_before, needed)
            recall[a, t, present] = hits[:, -1] / num_objects
            for m, most in enumerate(MAX_DETECTIONS[:-1] if a == 0 else ()):
                few = rows.images[rows.places[right[rows.ranks[right] < most]]]
                limited[m, t, present] = here[:, few].sum(axis=1) / num_objects
    ap, ar = precision.mean(axis=1), recall.mean(axis=1)
    return np.stack([ap[0], precision[0, _AT_50], precision[0, _AT_75], *ap[1:], *limited.mean(axis=1), *ar])


def _cumulative(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Return the sums of the weights of the first 0, 1, ... n images, [R, n+1] int32."""
    sums = np.zeros((len(weights), len(images) + 1), np.int32)
    np.cumsum(weights[:, images], axis=1, out=sums[:, 1:])
    return sums


def _needed_hits(num_objects: np.ndarray) -> np.ndarray:
    """Return how many correct detections reach each of RECALL_THRESHOLDS with [R] objects, at least 1; [R, 101]."""
    num_objects = num_objects[:, None]
    needed = np.ceil(RECALL_THRESHOLDS * num_objects)
    needed -= (needed - 1) / num_objects >= RECALL_THRESHOLDS  # product and quotient are rounded differently
    needed += needed / num_objects < RECALL_THRESHOLDS
    return np.maximum(needed, 1).astype(np.int64)


def _average_precision(hits: np.ndarray, misses: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return the mean of the interpolated precision at RECALL_THRESHOLDS, [R].

    hits: [R, n+1] correct detections after each of n, from 0. misses: [R, n] wrong ones before each. needed: [R, 101].
    """
    envelope = np.zeros(hits.shape)  # 0 beyond the highest recall
    np.divide(hits[:, 1:], hits[:, 1:] + misses, out=envelope[:, :-1], where=hits[:, 1:] > 0)
    np.maximum.accumulate(envelope[:, ::-1], axis=1, out=envelope[:, ::-1])
    # The place in `envelope` of each correct copy, in the order of the copies; a row ends with its last place
    copies = np.diff(hits, axis=1, append=hits[:, -1:] + 1)
    place_of_copy = np.repeat(np.arange(envelope.size), copies.ravel())
    first = np.cumsum(hits[:, -1] + 1) - hits[:, -1] - 1
    places = place_of_copy[first[:, None] + np.minimum(needed - 1, hits[:, -1:])]
    return envelope.ravel()[places].mean(axis=1)


class Difference(NamedTuple):
    """Difference of a metric, second detector minus first."""

    value: float
    low: float  # 95 % interval
    high: float
    probability: float  # that the second detector is better: share of the resamples, ties half

    @property
    def verdict(self) -> str:
        """Return `better` or `worse` if the interval excludes 0, else `no difference shown`."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "no difference shown"


class PairedDifferences(NamedTuple):
    """All differences of a pair; a metric that cannot be measured is left out."""

    name: str
    numbers: dict[str, Difference]  # the 12 metrics
    classes: dict[str, dict[str, Difference]]  # AP, AP50, AP75 and AP by size of each class

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`."""
        return {
            "pair": self.name,
            "numbers": {name: one._asdict() for name, one in self.numbers.items()},
            "classes": {
                name: {metric: one._asdict() for metric, one in metrics.items()}
                for name, metrics in self.classes.items()
            },
        }


def paired_differences(
    name: str, first: Samples, second: Samples, *, classes: Sequence[str], images: int
) -> PairedDifferences:
    """Return the differences of two detectors whose samples come from the same resamples of `images` images."""

    def measured(values: dict[str, np.ndarray]) -> dict[str, Difference]:
        found = {metric: _difference(samples, images=images) for metric, samples in values.items()}
        return {metric: one for metric, one in found.items() if not np.isnan(one.low)}

    by_class = second.by_class - first.by_class
    return PairedDifferences(
        name,
        measured(dict(zip(MEASURE_NAMES, second.numbers - first.numbers, strict=True))),
        {
            name: measured({metric: of_class[at] for metric, at in _OF_CLASSES.items()})
            for name, of_class in zip(classes, by_class, strict=True)
        },
    )


def _difference(samples: np.ndarray, *, images: int) -> Difference:
    present = samples[1:][~np.isnan(samples[1:])]
    shifted = present + (samples[0] - present.mean()) if present.size else present
    better = float(((shifted > 0) + 0.5 * (shifted == 0)).mean()) if present.size else np.nan
    return Difference(float(samples[0]), *interval(samples, images=images), better)
