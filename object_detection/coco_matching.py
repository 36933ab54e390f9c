"""Which detection finds which object, and precision and recall from that, as pycocotools defines them (`COCOeval`).

pycocotools walks through image, class, size range, threshold, detection and object in Python. Here all groups (the detections
and objects of one image and class) take their n-th best detection at the same time, for all thresholds and size ranges, with
the same float64 arithmetic and the same order among equals, so that the results are the same to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

IOU_THRESHOLDS = np.linspace(0.5, 0.95, 10)  # T = 10
RECALL_THRESHOLDS = np.linspace(0.0, 1.0, 101)  # R = 101
AREA_RANGES = np.array([(0, 1e10), (0, 32**2), (32**2, 96**2), (96**2, 1e10)])  # A = 4: all, small, medium, large; px^2
MOST_DETECTIONS = (1, 10, 100)  # M = 3, per image and class

_AT_ONCE = 6400  # groups times objects in one chunk: its arrays, with T and A, stay in the cache


class Truths(NamedTuple):
    """The N objects of the ground truth, those of crowds among them."""

    images: np.ndarray  # [N] int64, numbers in the order in which images count among equal scores
    classes: np.ndarray  # [N] int64, 0 .. K-1
    areas: np.ndarray  # [N] float64, square pixels
    crowd: np.ndarray  # [N] bool: may be found any number of times, and need not be


class Founds(NamedTuple):
    """The N detections that are to be held against the objects."""

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
    """The n detections that found something, for some range and threshold."""

    rows: np.ndarray  # [n]
    found: np.ndarray  # [n, A, T] bool: found an object
    to_ignore: np.ndarray  # [n, A, T] bool: one that does not count


class _Groups(NamedTuple):
    """Rows ordered by group, and where each group begins."""

    rows: np.ndarray  # [N]
    keys: np.ndarray  # [g] ascending: image and class in one number
    starts: np.ndarray  # [g]
    counts: np.ndarray  # [g]


class _Ranking(NamedTuple):
    """The rows of the best detections of each image and class, in two orders."""

    groups: _Groups  # by falling score in each
    by_class: np.ndarray  # [N] by class, then by falling score
    ranks: np.ndarray  # [all rows] in the group


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
    """Precision and recall of each class: detections matched with the objects of their image and class, then summed up."""
    ranking = _ranking(founds, num_classes)
    matches = _joined(_matches(ranking.groups, truths, num_classes, overlap))
    return _curves(founds, ranking, matches, truths, num_classes=num_classes)


def _joined(parts: Iterable[_Matches]) -> _Matches:
    """The matches of all parts, one behind the other; of no part none."""
    none = _Matches(np.zeros(0, np.int64), *np.zeros((2, 0, len(AREA_RANGES), len(IOU_THRESHOLDS)), bool))
    return _Matches(*map(np.concatenate, zip(none, *parts, strict=True)))


def _outside(areas: np.ndarray) -> np.ndarray:
    """[N] -> [N, A], whether an area lies outside each range."""
    return (areas[:, None] < AREA_RANGES[:, 0]) | (areas[:, None] > AREA_RANGES[:, 1])


def _stable_order(numbers: np.ndarray) -> np.ndarray:
    """Places of the numbers, not below 0, in ascending order."""
    small = not len(numbers) or numbers.max() <= np.iinfo(np.uint16).max
    return np.argsort(numbers.astype(np.uint16) if small else numbers, kind="stable")  # of 16 bits in time linear in N


def _groups(rows: np.ndarray, keys: np.ndarray) -> _Groups:
    """Where each run of one key begins and ends, of rows ordered by their keys."""
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return _Groups(rows, keys[starts], starts, np.diff(starts, append=len(rows)))


def _ranking(founds: Founds, num_classes: int) -> _Ranking:
    by_image = _stable_order(founds.images)
    by_score = by_image[np.argsort(-founds.scores[by_image], kind="stable")]
    by_class = by_score[_stable_order(founds.classes[by_score])]
    by_group = by_class[_stable_order(founds.images[by_class])]
    keys = founds.images[by_group] * num_classes + founds.classes[by_group]
    _, _, starts, counts = _groups(by_group, keys)
    ranks = np.empty(len(keys), np.int64)
    ranks[by_group] = np.arange(len(keys)) - np.repeat(starts, counts)
    kept = ranks < MOST_DETECTIONS[-1]
    in_group = kept[by_group]
    return _Ranking(_groups(by_group[in_group], keys[in_group]), by_class[kept[by_class]], ranks)


def _matches(found: _Groups, truths: Truths, num_classes: int, overlap: Overlap) -> Iterator[_Matches]:
    """Of the groups that have both detections and objects."""
    by_group = np.lexsort((truths.classes, truths.images))
    true = _groups(by_group, truths.images[by_group] * num_classes + truths.classes[by_group])
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
            d_rows = found.rows[first_found[chunk, None] + np.minimum(ranks, depth - 1)]  # [n, D]
            g_rows = true.rows[first_true[chunk, None] + np.minimum(places, count - 1)]  # [n, G]
            overlaps = np.where((ranks < depth)[..., None] & (places < count)[:, None], overlap(d_rows, g_rows), -1.0)
            crowd = truths.crowd[g_rows]
            yield _match(d_rows, overlaps, crowd=crowd, to_ignore=crowd[:, None] | outside[g_rows].transpose(0, 2, 1))


def _match(rows: np.ndarray, overlaps: np.ndarray, *, crowd: np.ndarray, to_ignore: np.ndarray) -> _Matches:
    """Groups of detections [n, D] with IoU [n, D, G], crowd [n, G], to_ignore [n, A, G] of their objects.

    Each detection, the best first, takes the free object that it overlaps most, one that is to be ignored only where no
    other one will do. A crowd stays free.
    """
    near = (overlaps >= IOU_THRESHOLDS[0]).any(axis=-1)  # [n, D]; all others find nothing, whatever the rest does
    deep = np.argsort(-near.sum(axis=1), kind="stable")
    near, rows, overlaps, crowd, to_ignore = (values[deep] for values in (near, rows, overlaps, crowd, to_ignore))
    nearest = np.argsort(~near, axis=1, kind="stable")  # places of those before the others, the best first
    depths = near.sum(axis=1)
    free = np.ones((len(rows), len(AREA_RANGES), len(IOU_THRESHOLDS), overlaps.shape[2]), bool)
    results = []
    for rank in range(depths.max(initial=0)):
        here = slice(np.searchsorted(-depths, -rank))  # deeper than this rank
        one = np.arange(here.stop), nearest[here, rank]
        iou, ignore = overlaps[one][:, None, None], to_ignore[here, :, None]  # [n, 1, 1, G], [n, A, 1, G]
        fits = free[here] & (iou >= IOU_THRESHOLDS[:, None])  # [n, A, T, G]
        proper = fits & ~ignore
        candidates = np.where(proper.any(axis=-1, keepdims=True), proper, fits)
        chosen = np.where(candidates, iou, -1.0).argmax(axis=-1)[..., None] == np.arange(free.shape[-1])
        chosen &= candidates
        free[here] &= ~chosen | crowd[here, None, None]
        results.append(_Matches(rows[one], chosen.any(axis=-1), (chosen & ignore).any(axis=-1)))
    return _joined(results)


class _Places(NamedTuple):
    """The n places, ascending, among all detections ordered by class and falling score, of those that found something."""

    places: np.ndarray  # [n]
    classes: np.ndarray  # [n]
    ranks: np.ndarray  # [n]
    before: np.ndarray  # [n, A] detections of the class before it whose area lies in the range
    inside: np.ndarray  # [n, A] bool: its own area does


def _curves(founds: Founds, ranking: _Ranking, matches: _Matches, truths: Truths, *, num_classes: int) -> Curves:
    """Precision rises at right detections alone, so that it is computed at these and nowhere else."""
    places, order = _places(founds, ranking, matches, num_classes)
    counted = ~_outside(truths.areas) & ~truths.crowd[:, None]  # [N, A]
    objects = np.stack([np.bincount(truths.classes[inside], minlength=num_classes) for inside in counted.T], axis=-1)  # [K, A]
    sizes = (len(IOU_THRESHOLDS), len(RECALL_THRESHOLDS), num_classes, len(AREA_RANGES), len(MOST_DETECTIONS))
    precision, recall = -np.ones(sizes[:4]), -np.ones((sizes[0], *sizes[2:]))
    for t, a in np.ndindex(sizes[0], sizes[3]):
        found = np.flatnonzero(matches.found[order, a, t])
        right = ~matches.to_ignore[order[found], a, t]
        classes, ranks, hits, misses = _hits(places, found, right, a, num_classes)
        present = np.flatnonzero(objects[:, a])
        for m, most in enumerate(MOST_DETECTIONS):
            recall[t, present, a, m] = (
                np.bincount(classes[ranks < most], minlength=num_classes)[present] / objects[present, a])
        reached, exact = hits / objects[classes, a], hits / (misses + hits + np.spacing(1))
        ends = np.searchsorted(classes, np.arange(num_classes + 1))
        for k in present.tolist():
            here = slice(ends[k], ends[k + 1])
            # The highest precision at this or any higher recall; 0 beyond the highest recall.
            envelope = np.append(np.maximum.accumulate(exact[here][::-1])[::-1], 0.0)
            precision[t, :, k, a] = envelope[np.searchsorted(reached[here], RECALL_THRESHOLDS)]
    return Curves(precision, recall)


def _places(founds: Founds, ranking: _Ranking, matches: _Matches, num_classes: int) -> tuple[_Places, np.ndarray]:
    """And the numbers of the matches in this order."""
    by_class = ranking.by_class
    place_of = np.empty(len(founds.classes), np.int64)
    place_of[by_class] = np.arange(len(by_class))
    order = np.argsort(place_of[matches.rows])
    rows = matches.rows[order]
    inside, places = ~_outside(founds.areas[by_class]), place_of[rows]
    begins = np.searchsorted(founds.classes[by_class], np.arange(num_classes))[founds.classes[rows]]
    before = np.concatenate([np.zeros((1, inside.shape[1]), int), np.cumsum(inside, axis=0)])
    return _Places(places, founds.classes[rows], ranking.ranks[rows], before[places] - before[begins], inside[places]), order


def _hits(places: _Places, found: np.ndarray, right: np.ndarray, a: int, num_classes: int) -> tuple[np.ndarray, ...]:
    """Of the right ones among the found: class, rank, and right and wrong ones of the class up to there. [n] each."""
    classes = places.classes[found]
    begins = np.searchsorted(classes, np.arange(num_classes))[classes]  # where its class begins among the found

    def before(flags: np.ndarray) -> np.ndarray:
        counts = np.cumsum(flags) - flags
        return counts - counts[begins]

    wrong = places.before[found, a] - before(places.inside[found, a])  # all in the range that found nothing
    return classes[right], places.ranks[found[right]], before(right)[right] + 1, wrong[right]
