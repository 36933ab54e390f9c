"""Precision and recall of detections that were matched with objects, to the last bit as pycocotools computes them."""

from typing import NamedTuple

import numpy as np

from object_detection.coco.matching import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    MOST_DETECTIONS,
    Instances,
    Matching,
    outside_ranges,
)

RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101


class Curves(NamedTuple):
    """Precision and recall at the thresholds; -1 where a class has no object in the range."""

    precision: np.ndarray  # [T, R, K, A], of the 100 best detections
    recall: np.ndarray  # [T, K, A, M]


class _Places(NamedTuple):
    """The n places, ascending, among all detections ordered by class and falling score, of those that match."""

    places: np.ndarray  # [n]
    classes: np.ndarray  # [n]
    ranks: np.ndarray  # [n]
    before: np.ndarray  # [n, A] detections of the class before it whose area lies in the range
    inside: np.ndarray  # [n, A] bool: its own area does


def curves(detections: Instances, objects: Instances, ignored: np.ndarray, matching: Matching, *, num_classes: int) -> Curves:
    """Precision and recall of detections that were matched with objects, of which `ignored` [N] need not be found.

    Precision rises at right detections alone, so that it is computed at these and nowhere else.
    """
    matches = matching.matches
    places, order = _places(detections, matching, num_classes)
    counted = ~outside_ranges(objects.areas) & ~ignored[:, None]  # [N, A]
    wanted = np.stack([np.bincount(objects.classes[inside], minlength=num_classes) for inside in counted.T], axis=-1)  # [K, A]
    sizes = (len(IOU_THRESHOLDS), len(RECALL_THRESHOLDS), num_classes, len(AREA_RANGES), len(MOST_DETECTIONS))
    precision, recall = -np.ones(sizes[:4]), -np.ones((sizes[0], *sizes[2:]))
    for t, a in np.ndindex(sizes[0], sizes[3]):
        matched = np.flatnonzero(matches.matched[order, a, t])
        right = ~matches.to_ignore[order[matched], a, t]
        classes, ranks, hits, misses = _hits(places, matched, right, a, num_classes)
        present = np.flatnonzero(wanted[:, a])
        for m, most in enumerate(MOST_DETECTIONS):
            recall[t, present, a, m] = (
                np.bincount(classes[ranks < most], minlength=num_classes)[present] / wanted[present, a])
        reached, exact = hits / wanted[classes, a], hits / (misses + hits + np.spacing(1))
        ends = np.searchsorted(classes, np.arange(num_classes + 1))
        for k in present.tolist():
            here = slice(ends[k], ends[k + 1])
            precision[t, :, k, a] = _interpolated(reached[here], exact[here])
    return Curves(precision, recall)


def average_precisions(classes: np.ndarray, scores: np.ndarray, right: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[K] AP of each class, -1 where no object is requested [K], of n detections of which it is known whether they are right.

    classes, scores, right [n]; the first come first where scores are equal.
    """
    order = np.lexsort((-scores, classes))
    ends = np.searchsorted(classes[order], np.arange(len(wanted) + 1))
    found = -np.ones(len(wanted))
    for k in np.flatnonzero(wanted).tolist():
        hits = right[order[ends[k] : ends[k + 1]]]
        places = np.flatnonzero(hits) + 1
        counts = np.arange(1, len(places) + 1)
        found[k] = _interpolated(counts / wanted[k], counts / (places + np.spacing(1))).mean()
    return found


def _interpolated(reached: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """[R] the highest precision at each of RECALL_THRESHOLDS or above, 0 beyond the highest recall.

    Of the n right detections of a class: recall and precision, [n].
    """
    envelope = np.append(np.maximum.accumulate(exact[::-1])[::-1], 0.0)
    return envelope[np.searchsorted(reached, RECALL_THRESHOLDS)]


def _places(detections: Instances, matching: Matching, num_classes: int) -> tuple[_Places, np.ndarray]:
    """The places of the matches, and the numbers of the matches in this order."""
    by_class, matches = matching.by_class, matching.matches
    place_of = np.empty(len(detections.classes), np.int64)
    place_of[by_class] = np.arange(len(by_class))
    order = np.argsort(place_of[matches.rows])
    rows = matches.rows[order]
    inside, places = ~outside_ranges(detections.areas[by_class]), place_of[rows]
    begins = np.searchsorted(detections.classes[by_class], np.arange(num_classes))[detections.classes[rows]]
    before = np.concatenate([np.zeros((1, inside.shape[1]), int), np.cumsum(inside, axis=0)])
    return _Places(places, detections.classes[rows], matching.ranks[rows], before[places] - before[begins],
                   inside[places]), order


def _hits(places: _Places, matched: np.ndarray, right: np.ndarray, a: int, num_classes: int) -> tuple[np.ndarray, ...]:
    """Of the right ones among the matched: class, rank, and right and wrong ones of the class up to there. [n] each."""
    classes = places.classes[matched]
    begins = np.searchsorted(classes, np.arange(num_classes))[classes]  # where its class begins among the matched

    def before(flags: np.ndarray) -> np.ndarray:
        counts = np.cumsum(flags) - flags
        return counts - counts[begins]

    wrong = places.before[matched, a] - before(places.inside[matched, a])  # all in the range that match nothing
    return classes[right], places.ranks[matched[right]], before(right)[right] + 1, wrong[right]
