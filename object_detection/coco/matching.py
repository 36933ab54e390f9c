"""Detections matched with the objects of the same images: the rows from which all metrics and analyses are computed.

Matching and curves are those of pycocotools (`COCOeval`).

pycocotools loops over image, class, size range, threshold, detection and object in Python. Here all groups (the
detections and objects of one image and class) process their n-th detection near an object at the same time, for all
thresholds and size ranges, with the same float64 arithmetic and the same order in ties, so that the results are
bit-identical.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T = 10
AREA_RANGES = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # A = 4: all, small, medium, large; px^2
MAX_DETECTIONS = (1, 10, 100)  # M = 3, per image and class
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101

_CHUNK_SIZE = 1 << 16  # pairs of a detection and an object whose IoU is computed at once


class Instances(NamedTuple):
    """The properties of N detections or annotated objects that matching needs, one per row."""

    images: np.ndarray  # [N] int64, numbers in the order that breaks ties of scores
    classes: np.ndarray  # [N] int64, 0 .. K-1
    areas: np.ndarray  # [N] float64, square pixels


class ObjectFlags(NamedTuple):
    """Further properties of annotated objects."""

    crowd: np.ndarray  # [N] bool: may be found any number of times, and need not be found
    ignored: np.ndarray  # [N] bool: need not be found, and finding it is not an error; includes crowds


# Row numbers of detections and of objects, which broadcast -> IoU of each pair.
Overlap = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Matching(NamedTuple):
    """The 100 best detections of each image and class, N in total, and the n of them that match an object."""

    by_class: np.ndarray  # [N] rows by class, then by falling score
    ranks: np.ndarray  # [N] in image and class
    places: np.ndarray  # [n] ascending, in `by_class`
    matched: np.ndarray  # [n, A, T] bool: matches an object in the size range, at the threshold
    to_ignore: np.ndarray  # [n, A, T] bool: matches an object that is not counted
    objects: np.ndarray  # [n] row of the object at the lowest threshold, for all sizes; -1: none

    @property
    def rows(self) -> np.ndarray:
        """[n] rows of the detections that match an object."""
        return self.by_class[self.places]


def box_overlap(detected: np.ndarray, annotated: np.ndarray, crowd: np.ndarray) -> Overlap:
    """Return the IoU of boxes [N, 4] x, y, width, height, float64; with a crowd: the detection's share inside."""

    def overlap(detections: np.ndarray, objects: np.ndarray) -> np.ndarray:
        one, other = detected[detections], annotated[objects]
        shared = np.minimum(one[..., :2] + one[..., 2:], other[..., :2] + other[..., 2:])
        shared -= np.maximum(one[..., :2], other[..., :2])
        intersection = np.where((shared > 0).all(axis=-1), shared[..., 0] * shared[..., 1], 0.0)
        area, other_area = one[..., 2] * one[..., 3], other[..., 2] * other[..., 3]
        union = np.where(crowd[objects], area, area + other_area - intersection)
        return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)

    return overlap


def outside_ranges(areas: np.ndarray) -> np.ndarray:
    """Return whether each area is outside of each range, [N] -> [N, A]."""
    return (areas[:, None] < AREA_RANGES[:, 0]) | (areas[:, None] > AREA_RANGES[:, 1])


def match(
    detections: Instances,
    scores: np.ndarray,
    objects: Instances,
    flags: ObjectFlags,
    *,
    num_classes: int,
    overlap: Overlap,
) -> Matching:
    """Match detections that have `scores` [N] with the objects of their image and class, by falling score.

    Each detection takes the unmatched object that it overlaps most, the last of equals, and an ignored object only if
    no other qualifies. A crowd can be matched repeatedly.
    """
    groups = _group_numbers(detections, num_classes)
    by_class, by_group, ranks = _ranking(detections, scores, groups)
    groups = groups[by_group]
    numbers, near, ious = near_pairs(
        groups,
        _group_numbers(objects, num_classes),
        lambda here, there: overlap(by_group[here], there),
        least=IOU_THRESHOLDS[0],
    )
    # Round n has the n-th detection of each group that is near an object
    is_first = np.diff(numbers, prepend=-1) > 0
    rounds = _places_among_equals(groups[numbers[is_first]])[np.cumsum(is_first) - 1]
    order = np.lexsort((ious, numbers, rounds))
    numbers, near, ious = numbers[order], near[order], ious[order, None, None]
    ignored = (flags.ignored[:, None] | outside_ranges(objects.areas))[..., None]  # [G, A, 1]
    free = np.ones((*ignored.shape[:2], len(IOU_THRESHOLDS)), bool)
    results = [(by_group[:0], free[:0], free[:0], by_group[:0])]
    for low, high in pairwise(np.searchsorted(rounds[order], np.arange(rounds.max(initial=-1) + 2)).tolist()):
        number, there, count = numbers[low:high], near[low:high], np.int32(high - low)
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        # The largest IoU is the last of a detection; ignored objects come before all others
        preference = np.arange(1, count + 1, dtype=np.int32)[:, None, None] + count * ~ignored[there]
        preference = np.where(free[there] & (ious[low:high] >= IOU_THRESHOLDS), preference, 0)  # [p, A, T]
        best, sizes = preference[starts], np.diff(starts, append=count)  # [n, A, T], [n]
        several = sizes > 1
        pairs = preference[np.repeat(several, sizes)]
        best[several] = np.maximum.reduceat(pairs, np.cumsum(sizes[several]) - sizes[several])
        chosen = (preference > 0) & (preference == np.repeat(best, sizes, axis=0))
        free[there] &= ~chosen | flags.crowd[there, None, None]
        at_lowest = np.maximum.reduceat(np.where(chosen[:, 0, 0], there, -1), starts)
        kept = np.flatnonzero(best.any(axis=(1, 2)))
        best, rows = best[kept], by_group[number[starts[kept]]]
        results.append((rows, best > 0, (best > 0) & (best <= count), at_lowest[kept]))
    rows, *outcomes = map(np.concatenate, zip(*results, strict=True))
    place_of = np.empty(len(scores), np.int64)
    place_of[by_class] = np.arange(len(by_class))
    order = np.argsort(place_of[rows])
    return Matching(by_class, ranks[by_class], place_of[rows[order]], *(values[order] for values in outcomes))


def _group_numbers(instances: Instances, num_classes: int) -> np.ndarray:
    """Return image and class in one number, [N]."""
    return instances.images * num_classes + instances.classes


def _places_among_equals(keys: np.ndarray) -> np.ndarray:
    """Return the place of each of N sorted keys among its equals, from 0."""
    places = np.arange(len(keys))
    return places - np.maximum.accumulate(np.where(np.diff(keys, prepend=-1), places, 0))


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """Return the indices that sort nonnegative integers, stably."""
    small = not len(numbers) or numbers.max() <= np.iinfo(np.uint16).max
    # Linear time if 16 bits are enough
    return np.argsort(numbers.astype(np.uint16) if small else numbers, kind="stable")


def _ranking(
    detections: Instances, scores: np.ndarray, groups: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows [N] of the best detections by class and by image and class, and the ranks of all detections."""
    by_image = _stable_order(detections.images)
    by_score = by_image[np.argsort(-scores[by_image], kind="stable")]
    by_class = by_score[_stable_order(detections.classes[by_score])]
    by_group = by_class[_stable_order(detections.images[by_class])]
    ranks = np.empty(len(scores), np.int64)
    ranks[by_group] = _places_among_equals(groups[by_group])
    is_best = ranks < MAX_DETECTIONS[-1]
    return by_class[is_best[by_class]], by_group[is_best[by_group]], ranks


def near_pairs(keys: np.ndarray, object_keys: np.ndarray, overlap: Overlap, *, least: float) -> tuple[np.ndarray, ...]:
    """Return the P pairs with equal keys and an IoU of `least` or more: rows of detections, rows of objects, and IoU.

    keys: [D]. object_keys: [G]. The pairs follow the order of the detections.
    """
    by_key = _stable_order(object_keys)
    firsts, ends = (np.searchsorted(object_keys[by_key], keys, side) for side in ("left", "right"))
    counts = ends - firsts
    totals = np.cumsum(counts)
    cuts = np.searchsorted(totals, np.arange(_CHUNK_SIZE, counts.sum(), _CHUNK_SIZE))
    parts = []
    for here in np.split(np.arange(len(keys)), cuts):
        rows = np.repeat(here, counts[here])
        places = np.arange(len(rows)) + (totals - counts)[here[:1]]  # of the pairs among all
        objects = by_key[places + (firsts - totals + counts)[rows]]
        ious = overlap(rows, objects)
        near = np.flatnonzero(ious >= least)
        parts.append((rows[near], objects[near], ious[near]))
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


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
