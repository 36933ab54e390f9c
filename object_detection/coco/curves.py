"""Precision and recall of matched detections, bit-identical to pycocotools."""

from typing import NamedTuple

import numpy as np

from object_detection.coco.matching import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    MAX_DETECTIONS,
    Instances,
    Matching,
    outside_ranges,
)

RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101


class Curves(NamedTuple):
    """Precision and recall at the thresholds; -1 where a class has no object in the size range."""

    precision: np.ndarray  # [T, R, K, A], with at most 100 detections per image and class
    recall: np.ndarray  # [T, K, A, M]


class _Places(NamedTuple):
    """Places of the n matched detections, ascending, among all detections ordered by class and falling score."""

    places: np.ndarray  # [n]
    classes: np.ndarray  # [n]
    ranks: np.ndarray  # [n]
    before: np.ndarray  # [n, A] preceding detections of the class whose area lies in the range
    inside: np.ndarray  # [n, A] bool: its own area lies in the range


def curves(
    detections: Instances, objects: Instances, ignored: np.ndarray, matching: Matching, *, num_classes: int
) -> Curves:
    """Return precision and recall of matched detections; objects that are `ignored` [N] need not be found.

    Precision increases at correct detections only, so it is computed there and nowhere else.
    """
    matches = matching.matches
    places, order = _places(detections, matching, num_classes)
    counted = ~outside_ranges(objects.areas) & ~ignored[:, None]  # [N, A]
    num_objects = np.stack(
        [np.bincount(objects.classes[inside], minlength=num_classes) for inside in counted.T], axis=-1
    )  # [K, A]
    sizes = (len(IOU_THRESHOLDS), len(RECALL_THRESHOLDS), num_classes, len(AREA_RANGES), len(MAX_DETECTIONS))
    precision, recall = -np.ones(sizes[:4]), -np.ones((sizes[0], *sizes[2:]))
    for t, a in np.ndindex(sizes[0], sizes[3]):
        matched = np.flatnonzero(matches.matched[order, a, t])
        right = ~matches.to_ignore[order[matched], a, t]
        classes, ranks, hits, misses = _hits(places, matched, right, a, num_classes)
        present = np.flatnonzero(num_objects[:, a])
        for m, most in enumerate(MAX_DETECTIONS):
            recall[t, present, a, m] = (
                np.bincount(classes[ranks < most], minlength=num_classes)[present] / num_objects[present, a]
            )
        reached, exact = hits / num_objects[classes, a], hits / (misses + hits + np.spacing(1))
        ends = np.searchsorted(classes, np.arange(num_classes + 1))
        for k in present.tolist():
            here = slice(ends[k], ends[k + 1])
            precision[t, :, k, a] = _interpolated(reached[here], exact[here])
    return Curves(precision, recall)


def average_precisions(
    classes: np.ndarray, scores: np.ndarray, right: np.ndarray, num_objects: np.ndarray
) -> np.ndarray:
    """Return the AP of each class [K], -1 for a class without objects, from n detections.

    Args:
        classes: [n]. In a tie of scores the first detection comes first.
        scores: [n].
        right: [n] bool, correct detections.
        num_objects: [K] number of objects of each class.
    """
    order = np.lexsort((-scores, classes))
    ends = np.searchsorted(classes[order], np.arange(len(num_objects) + 1))
    precisions = -np.ones(len(num_objects))
    for k in np.flatnonzero(num_objects).tolist():
        hits = right[order[ends[k] : ends[k + 1]]]
        places = np.flatnonzero(hits) + 1
        counts = np.arange(1, len(places) + 1)
        precisions[k] = _interpolated(counts / num_objects[k], counts / (places + np.spacing(1))).mean()
    return precisions


def _interpolated(reached: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return [R], the highest precision at each of RECALL_THRESHOLDS or above, 0 beyond the highest recall.

    The arguments are recall and precision at the n correct detections of a class, [n].
    """
    envelope = np.append(np.maximum.accumulate(exact[::-1])[::-1], 0.0)
    return envelope[np.searchsorted(reached, RECALL_THRESHOLDS)]


def _places(detections: Instances, matching: Matching, num_classes: int) -> tuple[_Places, np.ndarray]:
    """Return the places of the matches, and the numbers of the matches in this order."""
    by_class, matches = matching.by_class, matching.matches
    place_of = np.empty(len(detections.classes), np.int64)
    place_of[by_class] = np.arange(len(by_class))
    order = np.argsort(place_of[matches.rows])
    rows = matches.rows[order]
    inside, places = ~outside_ranges(detections.areas[by_class]), place_of[rows]
    begins = np.searchsorted(detections.classes[by_class], np.arange(num_classes))[detections.classes[rows]]
    counts_before = np.concatenate([np.zeros((1, inside.shape[1]), int), np.cumsum(inside, axis=0)])
    return _Places(
        places,
        detections.classes[rows],
        matching.ranks[rows],
        counts_before[places] - counts_before[begins],
        inside[places],
    ), order


def _hits(places: _Places, matched: np.ndarray, right: np.ndarray, a: int, num_classes: int) -> tuple[np.ndarray, ...]:
    """Return class, rank, and cumulative correct and wrong detections of the class, at each correct match; [n] each."""
    classes = places.classes[matched]
    begins = np.searchsorted(classes, np.arange(num_classes))[classes]  # where the class begins among the matched

    def before(flags: np.ndarray) -> np.ndarray:
        counts = np.cumsum(flags) - flags
        return counts - counts[begins]

    wrong = places.before[matched, a] - before(places.inside[matched, a])  # all detections in the range without a match
    return classes[right], places.ranks[matched[right]], before(right)[right] + 1, wrong[right]
