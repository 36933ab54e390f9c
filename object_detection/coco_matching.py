"""Which detection finds which object, and precision and recall from that, as pycocotools defines them (`COCOeval`).

pycocotools walks through image, class, size range, threshold, detection and object in Python. Here all groups (the detections
and objects of one image and class) take their n-th best detection at the same time, for all thresholds and size ranges, with
the same float64 arithmetic and the same order among equals, so that the results are the same to the last bit.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T = 10
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101
AREA_RANGES = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # A = 4: all, small, medium, large; px^2
MOST_DETECTIONS = (1, 10, 100)  # M = 3, per image and class

_AT_ONCE = 6400  # groups times objects in one chunk: its arrays, with T and A, stay in the cache


class Truths(NamedTuple):
    """The N objects to be found."""

    images: np.ndarray  # [N] int64, numbers in the order in which images count among equal scores
    classes: np.ndarray  # [N] int64, 0 .. K-1
    areas: np.ndarray  # [N] float64, square pixels
    crowd: np.ndarray  # [N] bool: may be found any number of times, and need not be


class Founds(NamedTuple):
    """N detections."""

    images: np.ndarray  # [N] int64
    classes: np.ndarray  # [N] int64
    areas: np.ndarray  # [N] float64
    scores: np.ndarray  # [N]


class Curves(NamedTuple):
    """-1 where a class has no object in the range."""

    precision: np.ndarray  # [T, R, K, A], of the 100 best detections
    recall: np.ndarray  # [T, K, A, M]


# Row numbers of detections [n, D] and of objects [n, G], any row where there is none -> IoU [n, D, G].
Overlap = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Matches(NamedTuple):
    """What became of n detections."""

    rows: np.ndarray  # [n]
    found: np.ndarray  # [n, A, T] bool: found an object
    to_ignore: np.ndarray  # [n, A, T] bool: one that does not count


class _Groups(NamedTuple):
    """Rows ordered by group, and where each group begins."""

    rows: np.ndarray  # [N]
    keys: np.ndarray  # [g] ascending: image and class in one number
    starts: np.ndarray  # [g]
    counts: np.ndarray  # [g]


def box_overlap(found: np.ndarray, truth: np.ndarray, crowd: np.ndarray) -> Overlap:
    """IoU of boxes [N, 4] x, y, width, height, float64; with a crowd: the share of the detection that lies in it."""
    def overlap(founds: np.ndarray, truths: np.ndarray) -> np.ndarray:
        one, other = found[founds][:, :, None], truth[truths][:, None]  # [n, D, 1, 4], [n, 1, G, 4]
        shared = np.minimum(one[..., :2] + one[..., 2:], other[..., :2] + other[..., 2:])
        shared -= np.maximum(one[..., :2], other[..., :2])
        intersection = np.where((shared > 0).all(axis=-1), shared[..., 0] * shared[..., 1], 0.0)
        area, other_area = one[..., 2] * one[..., 3], other[..., 2] * other[..., 3]
        union = np.where(crowd[truths][:, None], area, area + other_area - intersection)
        return np.divide(intersection, union, out=np.zeros_like(intersection), where=intersection > 0)

    return overlap


def curves(founds: Founds, truths: Truths, *, num_classes: int, overlap: Overlap) -> Curves:
    """Match and sum up."""
    best, ranks = _best(founds, num_classes)
    founds = Founds(*(values[best] for values in founds))
    outside = _outside(founds.areas)  # [N, A]
    matched = np.zeros((len(best), len(AREA_RANGES), len(IOU_THRESHOLDS)), bool)
    ignored = np.repeat(outside[:, :, None], len(IOU_THRESHOLDS), axis=2)
    for matches in _matches(founds, truths, num_classes, lambda d_rows, g_rows: overlap(best[d_rows], g_rows)):
        matched[matches.rows] = matches.found
        ignored[matches.rows] = np.where(matches.found, matches.to_ignore, ignored[matches.rows])
    return _curves(founds, ranks, matched & ~ignored, ~matched & ~ignored, truths, num_classes=num_classes)


def _outside(areas: np.ndarray) -> np.ndarray:
    """[N] -> [N, A], whether an area lies outside each range."""
    return (areas[:, None] < AREA_RANGES[:, 0]) | (areas[:, None] > AREA_RANGES[:, 1])


def _groups(images: np.ndarray, classes: np.ndarray, num_classes: int) -> _Groups:
    keys = images * num_classes + classes
    rows = np.argsort(keys, kind="stable")
    unique, starts, counts = np.unique(keys[rows], return_index=True, return_counts=True)
    return _Groups(rows, unique, starts, counts)


def _best(founds: Founds, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the best detections of each image and class, by group and falling score, and their ranks in the group."""
    by_score = np.argsort(-founds.scores, kind="stable")
    groups = _groups(founds.images[by_score], founds.classes[by_score], num_classes)
    ranks = np.arange(len(by_score)) - np.repeat(groups.starts, groups.counts)
    kept = ranks < MOST_DETECTIONS[-1]
    return by_score[groups.rows][kept], ranks[kept]


def _matches(founds: Founds, truths: Truths, num_classes: int, overlap: Overlap) -> Iterator[_Matches]:
    """Of the groups that have both detections, in the order of `_best`, and objects."""
    found, true = (_groups(items.images, items.classes, num_classes) for items in (founds, truths))
    _, in_found, in_true = np.intersect1d(found.keys, true.keys, assume_unique=True, return_indices=True)
    first_found, first_true = found.starts[in_found], true.starts[in_true]
    depths, widths = found.counts[in_found], true.counts[in_true]
    padded_widths = 1 << np.ceil(np.log2(widths)).astype(int)
    outside = _outside(truths.areas)
    for width in np.unique(padded_widths).tolist():
        alike = np.flatnonzero(padded_widths == width)
        alike = alike[np.argsort(-depths[alike], kind="stable")]
        for chunk in np.array_split(alike, min(len(alike), -(-len(alike) * width // _AT_ONCE))):
            depth, count = depths[chunk, None], widths[chunk, None]  # [n, 1]
            ranks = np.arange(depth.max())
            places = np.arange(width)[::-1]  # argmax takes the first of equals, COCO the last
            d_rows = first_found[chunk, None] + np.minimum(ranks, depth - 1)  # [n, D]
            g_rows = true.rows[first_true[chunk, None] + np.minimum(places, count - 1)]  # [n, G]
            crowd = truths.crowd[g_rows]
            matches = _match(
                np.where((places < count)[:, None], overlap(d_rows, g_rows), -1.0), depths[chunk], crowd=crowd,
                to_ignore=crowd[:, None] | outside[g_rows].transpose(0, 2, 1))
            there = ranks < depth
            yield _Matches(d_rows[there], matches.found[there], matches.to_ignore[there])


def _match(overlaps: np.ndarray, depths: np.ndarray, *, crowd: np.ndarray, to_ignore: np.ndarray) -> _Matches:
    """Groups [n] with falling depths, IoU [n, D, G], crowd [n, G], to_ignore [n, A, G] -> found, ignored [n, D, A, T].

    Each detection, the best first, takes the free object that it overlaps most, one that is to be ignored only where no
    other one will do. A crowd stays free.
    """
    n, depth, width = overlaps.shape
    shape = (n, depth, len(AREA_RANGES), len(IOU_THRESHOLDS))
    result = _Matches(np.arange(0), np.zeros(shape, bool), np.zeros(shape, bool))
    free = np.ones((n, *shape[2:], width), bool)
    for rank in range(depth):
        here = slice(np.searchsorted(-depths, -rank))  # deeper than this rank
        iou, ignore = overlaps[here, rank, None, None], to_ignore[here, :, None]  # [n, 1, 1, G], [n, A, 1, G]
        fits = free[here] & (iou >= IOU_THRESHOLDS[:, None])  # [n, A, T, G]
        proper = fits & ~ignore
        candidates = np.where(proper.any(axis=-1, keepdims=True), proper, fits)
        chosen = np.where(candidates, iou, -1.0).argmax(axis=-1)[..., None] == np.arange(width)
        chosen &= candidates
        result.found[here, rank] = chosen.any(axis=-1)
        result.to_ignore[here, rank] = (chosen & ignore).any(axis=-1)
        free[here] &= ~chosen | crowd[here, None, None]
    return result


def _curves(founds: Founds, ranks: np.ndarray, right: np.ndarray, wrong: np.ndarray, truths: Truths, *,
            num_classes: int) -> Curves:
    """From right and wrong detections, [N, A, T]."""
    by_score = np.lexsort((ranks, founds.images, -founds.scores, founds.classes))
    ends = np.searchsorted(founds.classes[by_score], np.arange(num_classes + 1))
    ranks, right, wrong = ranks[by_score], right[by_score], wrong[by_score]
    counted = ~_outside(truths.areas) & ~truths.crowd[:, None]  # [N, A]
    objects = np.stack([np.bincount(truths.classes[inside], minlength=num_classes) for inside in counted.T], axis=-1)  # [K, A]
    sizes = (len(IOU_THRESHOLDS), len(RECALL_THRESHOLDS), num_classes, len(AREA_RANGES), len(MOST_DETECTIONS))
    precision, recall = -np.ones(sizes[:4]), -np.ones((sizes[0], *sizes[2:]))
    for k, a in zip(*np.nonzero(objects), strict=True):
        rows = slice(ends[k], ends[k + 1])
        hits, misses = right[rows, a].cumsum(axis=0, dtype=float), wrong[rows, a].cumsum(axis=0, dtype=float)  # [n, T]
        for m, most in enumerate(MOST_DETECTIONS):
            recall[:, k, a, m] = right[rows, a][ranks[rows] < most].sum(axis=0) / objects[k, a]
        # The highest precision at this or any higher recall; 0 beyond the highest recall.
        envelope = np.maximum.accumulate((hits / (misses + hits + np.spacing(1)))[::-1])[::-1]
        envelope = np.concatenate([envelope, np.zeros((1, sizes[0]))])
        for t in range(sizes[0]):
            precision[t, :, k, a] = envelope[np.searchsorted(hits[:, t] / objects[k, a], RECALL_THRESHOLDS), t]
    return Curves(precision, recall)
