"""Detections matched with the objects of the same images: the rows from which all metrics and analyses are computed."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from object_detection.coco.matching import (
    AREA_RANGES,
    IOU_THRESHOLDS,
    MAX_DETECTIONS,
    Instances,
    Matching,
    ObjectFlags,
    Overlap,
    match,
    outside_ranges,
)

RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101


class Curves(NamedTuple):
    """Precision and recall at the thresholds; -1 where a class has no object in the size range."""

    precision: np.ndarray  # [T, R, K, A], with at most 100 detections per image and class
    recall: np.ndarray  # [T, K, A, M]


class Outcomes(NamedTuple):
    """Result of each of D detections at IoU 0.5, for all object sizes."""

    matched_objects: np.ndarray  # [D] row of the object that a correct detection finds; -1: none
    counted: np.ndarray  # [D] bool: correct or wrong; False if it finds an ignored object or is not among the 100 best

    @property
    def right(self) -> np.ndarray:
        """[D] bool: correct detections."""
        return self.matched_objects >= 0

    @property
    def wrong(self) -> np.ndarray:
        """[D] bool: wrong detections."""
        return self.counted & ~self.right


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """D detections and G objects of I images, with consecutive numbers instead of the data set's ids."""

    image_ids: np.ndarray  # [I] ascending
    names: tuple[str, ...]  # K class names
    detected: np.ndarray  # [D] rows among all detections
    scores: np.ndarray  # [D]
    detections: Instances
    objects: Instances
    object_boxes: np.ndarray  # [G, 4] float64, x, y, width, height
    flags: ObjectFlags
    overlap: Overlap

    @cached_property
    def matching(self) -> Matching:
        """Which detection finds which object of its class."""
        return match(
            self.detections, self.scores, self.objects, self.flags, num_classes=len(self.names), overlap=self.overlap
        )

    @cached_property
    def curves(self) -> Curves:
        """Precision and recall curves."""
        return _curves(self.detections, self.objects, self.flags.ignored, self.matching, num_classes=len(self.names))

    @cached_property
    def outcomes(self) -> Outcomes:
        """Correct and wrong detections at IoU 0.5."""
        matching = self.matching
        counted = np.zeros(len(self.scores), bool)
        counted[matching.by_class] = True
        counted[matching.rows[matching.to_ignore[:, 0, 0]]] = False
        object_of_detection = np.full(len(self.scores), -1)
        object_of_detection[matching.rows] = matching.objects
        return Outcomes(np.where(counted, object_of_detection, -1), counted)

    @property
    def class_counts(self) -> np.ndarray:
        """[K] number of objects to be found."""
        return np.bincount(self.objects.classes[~self.flags.ignored], minlength=len(self.names))


def _curves(
    detections: Instances, objects: Instances, ignored: np.ndarray, matching: Matching, *, num_classes: int
) -> Curves:
    """Return precision and recall of matched detections; objects that are `ignored` [N] need not be found.

    Precision increases at correct detections only, so it is computed there and nowhere else.
    """
    by_class, places = matching.by_class, matching.places
    inside, classes = ~outside_ranges(detections.areas[by_class]), detections.classes[by_class]
    class_begins = np.searchsorted(classes, np.arange(num_classes + 1))
    begins = np.searchsorted(places, class_begins)
    counts = np.concatenate([np.zeros((1, len(AREA_RANGES)), np.int64), np.cumsum(inside, axis=0)])
    inside, classes, ranks = inside[places], classes[places], matching.ranks[places]
    counts = counts[places + 1] - counts[class_begins[classes]]  # [n, A] detections of the class up to this one
    is_object = ~outside_ranges(objects.areas) & ~ignored[:, None]  # [N, A]
    sizes = (len(IOU_THRESHOLDS), len(RECALL_THRESHOLDS), num_classes, len(AREA_RANGES), len(MAX_DETECTIONS))
    precision, recall = -np.ones(sizes[:4]), -np.ones((sizes[0], *sizes[2:]))
    for a, t in np.ndindex(sizes[3], sizes[0]):
        num_objects = np.bincount(objects.classes[is_object[:, a]], minlength=num_classes)
        present = np.flatnonzero(num_objects)
        matched = np.flatnonzero(matching.matched[:, a, t])
        right = ~matching.to_ignore[matched, a, t]
        # A match decides whether a detection counts, not its own area
        changes = np.append(0, np.cumsum(right.astype(np.int64) - inside[matched, a]))
        firsts, hits = np.searchsorted(matched, begins), np.flatnonzero(right)
        ends, found = np.searchsorted(hits, firsts), matched[hits]
        for m, most in enumerate(MAX_DETECTIONS):
            recalled = np.bincount(classes[found[ranks[found] < most]], minlength=num_classes)
            recall[t, present, a, m] = recalled[present] / num_objects[present]
        counted = counts[found, a] + changes[hits + 1]
        for k in present.tolist():
            here = counted[ends[k] : ends[k + 1]] - changes[firsts[k]]
            precision[t, :, k, a] = _interpolated(here, num_objects[k])
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
        precisions[k] = _interpolated(np.flatnonzero(hits) + 1, num_objects[k]).mean()
    return precisions


def _interpolated(counts: np.ndarray, num_objects: int) -> np.ndarray:
    """Return [R], the highest precision at each of RECALL_THRESHOLDS or above, 0 beyond the highest recall.

    counts: [n] detections of a class up to each correct one.
    """
    hits = np.arange(1, len(counts) + 1)
    envelope = np.append(np.maximum.accumulate((hits / (counts + np.spacing(1)))[::-1])[::-1], 0.0)
    return envelope[np.searchsorted(hits / num_objects, RECALL_THRESHOLDS)]
