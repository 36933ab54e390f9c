"""Matching of detections with objects, as pycocotools defines it (`COCOeval`); see `curves` for precision and recall.

pycocotools loops over image, class, size range, threshold, detection and object in Python. Here all groups (the
detections and objects of one image and class) process their n-th best detection at the same time, for all thresholds
and size ranges, with the same float64 arithmetic and the same order in ties, so that the results are bit-identical.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T = 10
AREA_RANGES = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # A = 4: all, small, medium, large; px^2
MAX_DETECTIONS = (1, 10, 100)  # M = 3, per image and class

_CHUNK_SIZE = 6400  # groups times objects in one chunk: its arrays, with T and A, fit in the cache


class Instances(NamedTuple):
    """The properties of N detections or annotated objects that matching needs, one per row."""

    images: np.ndarray  # [N] int64, numbers in the order that breaks ties of scores
    classes: np.ndarray  # [N] int64, 0 .. K-1
    areas: np.ndarray  # [N] float64, square pixels


class ObjectFlags(NamedTuple):
    """Further properties of annotated objects."""

    crowd: np.ndarray  # [N] bool: may be found any number of times, and need not be found
    ignored: np.ndarray  # [N] bool: need not be found, and finding it is not an error; includes crowds


# Row numbers of detections [n, D] and of objects [n, G], any row where there is none -> IoU [n, D, G].
Overlap = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Matches(NamedTuple):
    """The n detections that match an object, for some range and threshold."""

    rows: np.ndarray  # [n]
    matched: np.ndarray  # [n, A, T] bool: matches an object
    to_ignore: np.ndarray  # [n, A, T] bool: matches an object that is not counted
    objects: np.ndarray  # [n] row of the object at the lowest threshold, for all sizes; -1: none


class Matching(NamedTuple):
    """Matches, and the 100 best detections of each image and class, matched or not."""

    by_class: np.ndarray  # [N] rows by class, then by falling score
    ranks: np.ndarray  # [all rows] in image and class
    matches: Matches


class _Groups(NamedTuple):
    """Rows ordered by group, and where each group begins."""

    rows: np.ndarray  # [N]
    keys: np.ndarray  # [g] ascending: image and class in one number
    starts: np.ndarray  # [g]
    counts: np.ndarray  # [g]


def box_overlap(detected: np.ndarray, annotated: np.ndarray, crowd: np.ndarray) -> Overlap:
    """Return the IoU of boxes [N, 4] x, y, width, height, float64; with a crowd: the detection's share inside."""

    def overlap(detections: np.ndarray, objects: np.ndarray) -> np.ndarray:
        one, other = detected[detections][:, :, None], annotated[objects][:, None]  # [n, D, 1, 4], [n, 1, G, 4]
        shared = np.minimum(one[..., :2] + one[..., 2:], other[..., :2] + other[..., 2:])
        shared -= np.maximum(one[..., :2], other[..., :2])
        intersection = np.where((shared > 0).all(axis=-1), shared[..., 0] * shared[..., 1], 0.0)
        area, other_area = one[..., 2] * one[..., 3], other[..., 2] * other[..., 3]
        union = np.where(crowd[objects][:, None], area, area + other_area - intersection)
        return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)

    return overlap


def match(
    detections: Instances,
    scores: np.ndarray,
    objects: Instances,
    flags: ObjectFlags,
    *,
    num_classes: int,
    overlap: Overlap,
) -> Matching:
    """Match detections that have `scores` [N] with the objects of their image and class, by falling score."""
    groups, by_class, ranks = _ranking(detections, scores, num_classes)
    return Matching(by_class, ranks, _joined(_matches(groups, objects, flags, num_classes, overlap)))


def _joined(parts: Iterable[Matches]) -> Matches:
    """Return the concatenated matches of all parts; empty if there is no part."""
    no_rows, no_flags = np.zeros(0, np.int64), np.zeros((0, len(AREA_RANGES), len(IOU_THRESHOLDS)), bool)
    none = Matches(no_rows, no_flags, no_flags, no_rows)
    return Matches(*map(np.concatenate, zip(none, *parts, strict=True)))


def outside_ranges(areas: np.ndarray) -> np.ndarray:
    """Return whether each area is outside of each range, [N] -> [N, A]."""
    return (areas[:, None] < AREA_RANGES[:, 0]) | (areas[:, None] > AREA_RANGES[:, 1])


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """Return the indices that sort nonnegative integers, stably."""
    small = not len(numbers) or numbers.max() <= np.iinfo(np.uint16).max
    return np.argsort(
        numbers.astype(np.uint16) if small else numbers, kind="stable"
    )  # linear time if 16 bits are enough


def _groups(rows: np.ndarray, keys: np.ndarray) -> _Groups:
    """Return the groups of rows [N], which are sorted by their keys [N]."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return _Groups(rows, keys[starts], starts, np.diff(starts, append=len(rows)))


def _ranking(detections: Instances, scores: np.ndarray, num_classes: int) -> tuple[_Groups, np.ndarray, np.ndarray]:
    """Return the groups, each by falling score, and `by_class` and `ranks` of `Matching`."""
    by_image = _stable_order(detections.images)
    by_score = by_image[np.argsort(-scores[by_image], kind="stable")]
    by_class = by_score[_stable_order(detections.classes[by_score])]
    by_group = by_class[_stable_order(detections.images[by_class])]
    keys = detections.images[by_group] * num_classes + detections.classes[by_group]
    _, _, starts, counts = _groups(by_group, keys)
    ranks = np.empty(len(keys), np.int64)
    ranks[by_group] = np.arange(len(keys)) - np.repeat(starts, counts)
    is_evaluated = ranks < MAX_DETECTIONS[-1]
    in_group = is_evaluated[by_group]
    return _groups(by_group[in_group], keys[in_group]), by_class[is_evaluated[by_class]], ranks


def _matches(
    detected: _Groups, objects: Instances, flags: ObjectFlags, num_classes: int, overlap: Overlap
) -> Iterator[Matches]:
    """Yield the matches of the groups that have both detections and objects."""
    by_group = np.lexsort((objects.classes, objects.images))
    annotated = _groups(by_group, objects.images[by_group] * num_classes + objects.classes[by_group])
    _, in_detected, in_annotated = np.intersect1d(
        detected.keys, annotated.keys, assume_unique=True, return_indices=True
    )
    first_detected, first_annotated = detected.starts[in_detected], annotated.starts[in_annotated]
    depths, widths = detected.counts[in_detected], annotated.counts[in_annotated]
    padded_widths = 1 << np.ceil(np.log2(widths)).astype(int)
    outside = outside_ranges(objects.areas)
    for width in np.unique(padded_widths).tolist():
        same_width = np.flatnonzero(padded_widths == width)
        same_width = same_width[np.argsort(-depths[same_width], kind="stable")]
        for chunk in np.array_split(same_width, min(len(same_width), -(-len(same_width) * width // _CHUNK_SIZE))):
            depth, count = depths[chunk, None], widths[chunk, None]  # [n, 1]
            ranks = np.arange(depth.max())
            places = np.arange(width)[::-1]  # argmax takes the first of equals, COCO the last
            d_rows = detected.rows[first_detected[chunk, None] + np.minimum(ranks, depth - 1)]  # [n, D]
            g_rows = annotated.rows[first_annotated[chunk, None] + np.minimum(places, count - 1)]  # [n, G]
            overlaps = np.where((ranks < depth)[..., None] & (places < count)[:, None], overlap(d_rows, g_rows), -1.0)
            yield _match(
                d_rows,
                g_rows,
                overlaps,
                crowd=flags.crowd[g_rows],
                to_ignore=flags.ignored[g_rows][:, None] | outside[g_rows].transpose(0, 2, 1),
            )


def _match(
    rows: np.ndarray, objects: np.ndarray, overlaps: np.ndarray, *, crowd: np.ndarray, to_ignore: np.ndarray
) -> Matches:
    """Match groups of detections [n, D] and objects [n, G] with IoU [n, D, G]; crowd [n, G], to_ignore [n, A, G].

    Each detection, by falling score, takes the unmatched object that it overlaps most, and an ignored object only if no
    other qualifies. A crowd can be matched repeatedly.
    """
    near = (overlaps >= IOU_THRESHOLDS[0]).any(axis=-1)  # [n, D]; all other detections match nothing
    deep = np.argsort(-near.sum(axis=1), kind="stable")
    near, rows, objects, overlaps, crowd, to_ignore = (
        values[deep] for values in (near, rows, objects, overlaps, crowd, to_ignore)
    )
    nearest = np.argsort(~near, axis=1, kind="stable")  # places of these before the others, by falling score
    depths = near.sum(axis=1)
    free = np.ones((len(rows), len(AREA_RANGES), len(IOU_THRESHOLDS), overlaps.shape[2]), bool)
    results = []
    for rank in range(depths.max(initial=0)):
        here = slice(np.searchsorted(-depths, -rank))  # groups with more detections than this rank
        one = np.arange(here.stop), nearest[here, rank]
        iou, ignore = overlaps[one][:, None, None], to_ignore[here, :, None]  # [n, 1, 1, G], [n, A, 1, G]
        fits = free[here] & (iou >= IOU_THRESHOLDS[:, None])  # [n, A, T, G]
        proper = fits & ~ignore
        candidates = np.where(proper.any(axis=-1, keepdims=True), proper, fits)
        chosen = np.where(candidates, iou, -1.0).argmax(axis=-1)[..., None] == np.arange(free.shape[-1])
        chosen &= candidates
        free[here] &= ~chosen | crowd[here, None, None]
        at_lowest = np.where(chosen[:, 0, 0], objects[here], -1).max(axis=-1)
        results.append(Matches(rows[one], chosen.any(axis=-1), (chosen & ignore).any(axis=-1), at_lowest))
    return _joined(results)
