"""Candidates and suppression in NumPy: equivalent to `tensor_suppression.py`, for networks that run in another runtime.

The loop of an image considers its best candidates first. Scores only decrease, so as long as each detection scores at
least as much as the last of these candidates, the others cannot change the result. Otherwise all candidates are used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from object_detection.geometry.box_geometry import LARGEST_COORDINATE
from object_detection.structures import Detections
from object_detection.suppression.tensor_suppression import (
    LOWEST,
    SuppressionConfig,
    check_class_count,
    checked_level_sizes,
)

_FIRST_CANDIDATES = 1500
_SIMILAR = 0.95  # ratio of scores
_SMALLEST = np.float32(1e-30)  # areas and scores below it count as 0


class NetworkOutputs(NamedTuple):
    """Outputs of a network for one image at its A anchors."""

    class_logits: np.ndarray  # [A, K] float32
    box_deltas: np.ndarray  # [A, 4] float32
    best_logits: np.ndarray  # [A] float32, the highest of each anchor


def detections_on_host(
    outputs: NetworkOutputs,
    anchors: np.ndarray,
    *,
    config: SuppressionConfig,
    level_sizes: Sequence[int] | None = None,
    clip_to: Sequence[int] | np.ndarray | None = None,
    within: Sequence[int] | np.ndarray | None = None,
) -> Detections[np.ndarray]:
    """Return the Detections of one image, arrays with D = max_detections and without B; anchors [A, 4] float32.

    level_sizes, and clip_to and within (height, width), as in `detections_from_outputs`.
    """
    values, best_of_anchor = _ranked(outputs, config.scores)
    for count in (min(_FIRST_CANDIDATES, config.candidates), config.candidates):
        values_of_candidates, classes, numbers = _candidates(values, best_of_anchor, count, config, level_sizes)
        scores = _scores(values_of_candidates, config.scores)
        if scores[-1] > _SIMILAR * scores[0] and count < config.candidates:
            continue  # boxes that overlap a selected one could soon score less than the candidates left out
        boxes = config.box_coder.decode_on_host(outputs.box_deltas[numbers], anchors[numbers])
        usable = _has_area(boxes, None if within is None else np.asarray(within, np.float32))
        if config.clip:
            assert clip_to is not None
            boxes = np.clip(boxes, 0, np.tile(np.asarray(clip_to, np.float32), 2))
        boxes = np.clip(boxes, -LARGEST_COORDINATE, LARGEST_COORDINATE)
        chosen, chosen_scores = _suppress(boxes, np.where(usable, scores, np.float32(0)), classes, config)
        enough = len(chosen) == config.max_detections and chosen_scores[-1] >= scores[-1]
        if enough or scores[-1] <= config.score_threshold or len(scores) < count:
            break
    slots, count = config.max_detections, len(chosen)

    def in_slots(values: np.ndarray) -> np.ndarray:
        padded = np.zeros((slots, *values.shape[1:]), values.dtype)
        padded[:count] = values
        return padded

    return Detections(
        in_slots(boxes[chosen]), in_slots(chosen_scores), in_slots(classes[chosen]), np.arange(slots) < count
    )


def _has_area(boxes: np.ndarray, limits: np.ndarray | None) -> np.ndarray:
    """Return `box_geometry.has_area` of boxes [N, 4] within limits [2], height and width."""
    low, high = boxes[:, :2], boxes[:, 2:]
    inside = low < high
    if limits is not None:
        inside &= (low < limits) & (high > 0)
    return np.all(inside, axis=1)


def _ranked(outputs: NetworkOutputs, scores: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values in the order of the scores, [A, K or K - 1], and the highest of each anchor, [A]."""
    logits = outputs.class_logits
    check_class_count(logits.shape[1], scores)
    if scores == "sigmoid":
        return logits, outputs.best_logits
    below = logits - logits.max(axis=-1, keepdims=True)
    below -= np.log(np.exp(below).sum(axis=-1, keepdims=True))
    values = below[:, 1:]
    return values, values.max(axis=-1)


def _scores(values: np.ndarray, scores: str) -> np.ndarray:
    """Return the scores of the values of `_ranked`."""
    if scores != "sigmoid":
        return np.exp(values)
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-values))


def _candidates(
    values: np.ndarray,
    best_of_anchor: np.ndarray,
    count: int,
    config: SuppressionConfig,
    level_sizes: Sequence[int] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, classes and anchors of the highest `count` of [A, K] that the configuration admits, best first."""
    if config.candidates_per_level is not None:
        parts, first = [], 0
        for size in checked_level_sizes(level_sizes, len(values)):
            level = slice(first, first + size)
            candidates, classes, anchors = _top_candidates(
                values[level], best_of_anchor[level], min(count, config.candidates_per_level)
            )
            parts.append((candidates, classes, anchors + first))
            first += size
    elif config.candidates_per_class is not None:
        values = _sortable(values)
        tops = [_top(of_class, min(count, config.candidates_per_class)) for of_class in values.T]
        parts = [(values[top, number], np.full(len(top), number, np.int32), top) for number, top in enumerate(tops)]
    else:
        return _top_candidates(values, best_of_anchor, count)
    candidates, classes, anchors = map(np.concatenate, zip(*parts, strict=True))
    order = _top(candidates, count)
    return candidates[order], classes[order], anchors[order]


def _top_candidates(
    values: np.ndarray, best_of_anchor: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values, classes and anchors of the highest of [A, K], best first."""
    anchor_numbers = _anchors_of_top(values, _sortable(best_of_anchor), count)
    flat = _sortable(values[anchor_numbers].ravel())
    order = _top(flat, count)
    anchors, classes = np.divmod(order, values.shape[1])
    return flat[order], classes.astype(np.int32), anchor_numbers[anchors]


def _anchors_of_top(logits: np.ndarray, best_of_anchor: np.ndarray, count: int) -> np.ndarray:
    """Return the anchors, ascending, of the highest `count` scores: fewer than `count` if one has several."""
    few = np.sort(_top(best_of_anchor, max(count // 8, 1)))
    scores = _sortable(logits[few].ravel())
    least = np.partition(scores, -count)[-count] if len(scores) >= count else -np.inf  # of the `count` best anchors
    if least == best_of_anchor.max():  # all equal, as for an untrained network: the first anchors come first
        return few
    anchor_numbers = np.sort(_top(best_of_anchor, count))
    return anchor_numbers[best_of_anchor[anchor_numbers] >= least]


def _sortable(values: np.ndarray) -> np.ndarray:
    """Return the values with NaN, for which a sorted order is undefined, replaced by the lowest score."""
    return np.where(np.isnan(values), np.float32(LOWEST), values)


def _top(values: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the highest values, highest first, ties by index."""
    places = np.arange(len(values))
    if count < len(values):
        last = np.partition(values, len(values) - count)[len(values) - count]
        above, ties = (np.flatnonzero(positions) for positions in (values > last, values == last))
        places = np.sort(np.concatenate([above, ties[: count - len(above)]]))
    return places[np.argsort(-values[places], kind="stable")]


class _ActiveBoxes(NamedTuple):
    """N boxes that can still be selected, sorted by group (a class, or all), best first at the start."""

    numbers: np.ndarray  # [N] int
    groups: np.ndarray  # [N] int, 0 .. G-1, ascending
    corners: np.ndarray  # [4, N] top, left, -bottom, -right: an intersection has their maxima
    areas: np.ndarray  # [N]


@np.errstate(over="ignore", invalid="ignore")  # boxes of an untrained or diverged detector
def _suppress(
    boxes: np.ndarray, scores: np.ndarray, classes: np.ndarray, config: SuppressionConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of the selected boxes in the order of selection, and their scores at that time.

    Every class selects its best box in each iteration. As scores only decrease, the best of all these boxes are the
    selection of one loop over all classes. The loop ends when no class has a remaining score among them.
    """
    if config.method == "none":
        best = np.argsort(-scores, kind="stable")[: config.max_detections]
        best = best[scores[best] > config.score_threshold]
        return best, scores[best]
    remaining, active = _active_boxes(boxes, scores, classes if config.per_class else np.zeros_like(classes), config)
    chosen, chosen_scores, reach = [np.zeros(0, np.int64)], np.zeros(0, np.float32), _SMALLEST
    while len(remaining):
        starts = np.searchsorted(active.groups, np.arange(active.groups[-1] + 1))
        highest = np.maximum.reduceat(remaining, starts)  # [G]
        if (highest < reach).any():
            here = remaining >= reach
            group_numbers = np.cumsum(highest >= reach) - 1
            remaining, active = remaining[here], _ActiveBoxes(*(values[..., here] for values in active))
            active = active._replace(groups=group_numbers[active.groups])
            continue
        places = np.flatnonzero(remaining == highest[active.groups])
        best = places[np.searchsorted(places, starts)]  # ties: the first
        chosen.append(active.numbers[best])
        chosen_scores = np.concatenate([chosen_scores, highest])
        if len(chosen_scores) >= config.max_detections:
            reach = max(reach, np.partition(chosen_scores, -config.max_detections)[-config.max_detections])
        remaining *= _survival(_overlap(active, best), config)
        remaining[remaining <= config.score_threshold] = 0
        remaining[best] = 0
    numbers = np.concatenate(chosen)
    order = np.lexsort((numbers, -chosen_scores))[: config.max_detections]
    return numbers[order], chosen_scores[order]


def _active_boxes(
    boxes: np.ndarray, scores: np.ndarray, groups: np.ndarray, config: SuppressionConfig
) -> tuple[np.ndarray, _ActiveBoxes]:
    """Return the scores [N] and the other values of the boxes above the threshold."""
    numbers = np.argsort(groups, kind="stable")
    numbers = numbers[scores[numbers] > config.score_threshold]
    corners = (boxes[numbers] * np.array([1, 1, -1, -1], np.float32)).T
    areas = _intersection(corners.copy())
    _, groups = np.unique(groups[numbers], return_inverse=True)
    return scores[numbers], _ActiveBoxes(numbers, groups, np.ascontiguousarray(corners), areas)


def _overlap(active: _ActiveBoxes, best: np.ndarray) -> np.ndarray:
    """Return the IoU [N] of each box with the selected one of its group, `best` [G]."""
    selected = best if len(best) == 1 else best[active.groups]  # a single one broadcasts
    shared = _intersection(np.maximum(active.corners, active.corners[:, selected]))
    union = active.areas + active.areas[selected]
    union -= shared
    # An empty box has no intersection; the union of an infinite one with another is NaN or infinite
    return np.divide(shared, np.fmax(union, _SMALLEST, out=union), out=shared)


def _intersection(corners: np.ndarray) -> np.ndarray:
    """Return the areas [N] of boxes given as top, left, -bottom, -right, which are overwritten; 0 for empty boxes."""
    sides = np.add(corners[:2], corners[2:], out=corners[:2])  # -height, -width
    areas = np.multiply(*np.minimum(sides, 0, out=sides))
    return np.fmax(areas, 0, out=areas)  # NaN or infinite for infinite height and width 0


def _survival(overlap: np.ndarray, config: SuppressionConfig) -> np.ndarray:
    """Return the factor of `tensor_suppression`'s `_survival`; overwrites its argument."""
    if config.method == "gaussian":
        np.square(overlap, out=overlap)
        overlap *= np.float32(-1 / config.sigma)
        return np.exp(overlap, out=overlap)
    return overlap <= config.iou_threshold
