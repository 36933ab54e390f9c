"""Detections from the outputs of a dense detector: candidates, decoding, suppression.

Suppression is greedy: the box with the highest score is selected and lowers the scores of others, and so on. Scores
only decrease, which allows two shortcuts with the same result:

- Of the best few boxes, all that no better one overlaps are selected in one iteration. Their final scores are known,
  because only boxes that overlap them could change these.
- The loop uses the best `FIRST_CANDIDATES` first. If the last detection has at least the score of the last candidate,
  the other candidates could not have been detected. Else all are used.

Suppression per class is the same loop in which a selected box affects only its own class.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from keras import ops

from object_detection.gather import entries, scattered
from object_detection.geometry.box_coding import PLAIN_BOX_CODER, BoxCoder
from object_detection.geometry.box_geometry import (
    LARGEST_COORDINATE,
    Sides,
    clip_boxes,
    has_area,
    iou_of_sides,
    sides_of,
)
from object_detection.structures import Detections, Tensor
from program_support.checked_fields import Count, Positive, checked_part, one_of

METHODS = ("hard", "gaussian", "none")
SCORES = ("sigmoid", "softmax")
FIRST_CANDIDATES = 2048  # of the first attempt; 100 detections of trained detectors took 1,500 to 3,800
_EXAMINED, _SELECTED = 16, 8  # boxes per iteration at most; 100 detections take about 16 iterations
_IMPOSSIBLE = -1e9  # logarithm of a probability
LOWEST = -3e38  # logit in place of NaN, with a score of 0


@checked_part
class SuppressionConfig:
    """Post-processing: computation of scores and boxes from outputs, choice of candidates, suppression of overlaps.

    Attributes:
        method: "hard" removes boxes that overlap a better box by more than iou_threshold (the float32 below 0.5 also
            removes an IoU of 0.5, as in SSD's reference); "gaussian" multiplies their score by exp(-iou^2 / sigma)
            (Bodla et al. 2017, soft-NMS) and ignores iou_threshold, as the published evaluation; "none" keeps all
            boxes, for detectors trained without duplicates.
        per_class: a box suppresses only boxes of its own class.
        candidates: maximum number of anchor x class scores before suppression.
        candidates_per_level: maximum number of them per level, as in torchvision's detectors.
        candidates_per_class: maximum number of them per class, as in SSD.
        scores: activation of the logits, a sigmoid each or one softmax over the logits of an anchor, the first of which
            is the background's; classes are numbered without it.
        box_coder: decodes box deltas.
        clip: whether boxes are clipped to the image before suppression, as in torchvision's detectors; otherwise the
            caller clips them.
    """

    method: Annotated[str, one_of(*METHODS)] = "gaussian"
    per_class: bool = True
    iou_threshold: float = 0.5
    score_threshold: float = 0.001
    sigma: Positive = 0.5
    candidates: Count = 5000
    max_detections: Count = 100
    candidates_per_level: Count | None = None
    candidates_per_class: Count | None = None
    scores: Annotated[str, one_of(*SCORES)] = "sigmoid"
    box_coder: BoxCoder = PLAIN_BOX_CODER
    clip: bool = False


def detections_from_outputs(
    class_logits: Tensor,
    box_deltas: Tensor,
    anchors: Tensor,
    *,
    config: SuppressionConfig,
    level_sizes: Sequence[int] | None = None,
    clip_to: Tensor | None = None,
    within: Tensor | None = None,
) -> Detections[Tensor]:
    """Return Detections with D = max_detections. [B, A, K], [B, A, 4], [A, 4] -> candidates, decoding and suppression.

    level_sizes: see `top_candidates`. clip_to: [B, 2], height and width of the images, required if config.clip. within:
    [B, 2], sizes in which a box must have an area; others are left out before the best are selected. None: anywhere.
    """

    def detect(count: int) -> tuple[Detections[Tensor], Tensor]:
        """Return the detections in `count` candidates, and the scores of these."""
        limited = replace(config, candidates=count)
        scores, classes, numbers = top_candidates(class_logits, config=limited, level_sizes=level_sizes)
        boxes = config.box_coder.decode(entries(box_deltas, numbers), ops.take(anchors, numbers, axis=0))
        usable = has_area(boxes, within)
        if config.clip:
            assert clip_to is not None
            boxes = clip_boxes(boxes, clip_to)
        boxes = ops.clip(boxes, -LARGEST_COORDINATE, LARGEST_COORDINATE)
        return suppress(boxes, ops.where(usable, scores, 0.0), classes, config=config), scores

    first, scores = detect(min(FIRST_CANDIDATES, config.candidates))
    if config.candidates <= FIRST_CANDIDATES or scores.shape[1] < FIRST_CANDIDATES:
        return first
    last = ops.maximum(first.scores[:, -1], config.score_threshold)
    complete = ops.all(last >= scores[:, -1])
    return Detections(*ops.cond(complete, lambda: tuple(first)[:4], lambda: tuple(detect(config.candidates)[0])[:4]))


def top_candidates(
    class_logits: Tensor, *, config: SuppressionConfig, level_sizes: Sequence[int] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores, classes and anchors of the highest anchor x class scores, best first. [B, A, K] -> [B, N] each.

    N is config.candidates, or the number of scores if that is less. Ties are ordered by level, or class, if candidates
    are limited by these, then by anchor, then by class. level_sizes: number of anchors of each level (see
    AnchorGrid.level_sizes), required if candidates are limited per level.

    Raises:
        ValueError: level_sizes are missing or their sum is not A, or the background is the only class.
    """
    values = _ranked(class_logits, config.scores)
    if config.candidates_per_level is not None:
        sizes = checked_level_sizes(level_sizes, values.shape[1])
        candidates = _top_of_levels(values, config.candidates_per_level, sizes)
    elif config.candidates_per_class is not None:
        candidates = _top_of_classes(values, config.candidates_per_class)
    else:
        candidates = _top(values, config.candidates)
    best, classes, anchors = candidates
    if config.candidates_per_level is not None or config.candidates_per_class is not None:
        best, numbers = ops.top_k(best, min(config.candidates, best.shape[1]))
        classes, anchors = entries(classes, numbers), entries(anchors, numbers)
    return ops.sigmoid(best) if config.scores == "sigmoid" else ops.exp(best), classes, anchors


def checked_level_sizes(level_sizes: Sequence[int] | None, num_anchors: int) -> Sequence[int]:
    """Return level_sizes; raise ValueError if their sum is not num_anchors."""
    if level_sizes is None or sum(level_sizes) != num_anchors:
        raise ValueError(
            f"{num_anchors} anchors with level_sizes {level_sizes}; expected sizes with this sum, because "
            "candidates are limited per level"
        )
    return level_sizes


def check_class_count(count: int, scores: str) -> None:
    """Raise ValueError if the background would be the only class."""
    if scores != "sigmoid" and count < 2:
        raise ValueError(f"{count} logits per anchor with scores by {scores}; expected a class besides the background")


def _ranked(class_logits: Tensor, scores: str) -> Tensor:
    """Return values in the order of the scores that also distinguish scores near 1: logits or log probabilities.

    The background is left out. [B, A, K] -> [B, A, K or K - 1].
    """
    check_class_count(class_logits.shape[-1], scores)
    if scores == "sigmoid":
        return class_logits
    return ops.log_softmax(class_logits, axis=-1)[..., 1:]


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, classes and anchors of the `count` highest of [B, A, K], best first, each [B, N].

    The result is exactly the flattened top k (ties by anchor, then class), without sorting A x K values: an anchor of
    the k best values is among the k anchors whose best class is highest.
    """
    num_anchors, num_classes = values.shape[1], values.shape[2]
    kept_anchors = min(count, num_anchors)
    if 2 * kept_anchors > num_anchors:  # few would be left out
        flattened = ops.reshape(_sortable(values), (-1, num_anchors * num_classes))
        best, flat = ops.top_k(flattened, min(count, flattened.shape[1]))
        return best, flat % num_classes, flat // num_classes
    _, anchor_numbers = ops.top_k(_sortable(ops.max(values, axis=-1)), kept_anchors)
    anchor_numbers = ops.sort(anchor_numbers, axis=-1)  # ascending, so that ties are ordered as in the flattened values
    sortable = _sortable(entries(values, anchor_numbers))  # [B, k, K]
    best, flat = ops.top_k(ops.reshape(sortable, (-1, kept_anchors * num_classes)), count)
    anchors = entries(anchor_numbers, flat // num_classes)
    return best, flat % num_classes, anchors


def _sortable(values: Tensor) -> Tensor:
    """Return the values with NaN, for which a sorted order is undefined, replaced by the lowest score."""
    return ops.where(ops.isnan(values), LOWEST, values)


def _top_of_levels(values: Tensor, count: int, level_sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, classes and anchors of the `count` highest of each level of [B, A, K], by level, each [B, N]."""
    levels, first = [], 0
    for size in level_sizes:
        best, classes, anchors = _top(values[:, first : first + size], count)
        levels.append((best, classes, anchors + first))
        first += size
    return tuple(ops.concatenate(parts, axis=1) for parts in zip(*levels, strict=True))


def _top_of_classes(values: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, classes and anchors of the `count` highest of each class of [B, A, K], by class, [B, K count]."""
    count, num_classes = min(count, values.shape[1]), values.shape[2]
    best, anchors = ops.top_k(ops.transpose(_sortable(values), (0, 2, 1)), count)  # [B, K, count]
    classes = ops.zeros_like(anchors) + ops.arange(num_classes, dtype=anchors.dtype)[:, None]
    return tuple(ops.reshape(each, (-1, num_classes * count)) for each in (best, classes, anchors))


def suppress(boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig) -> Detections[Tensor]:
    """Return the result of greedy suppression. boxes [B, N, 4], scores [B, N], classes [B, N] int -> Detections."""
    return suppress_and_number(boxes, scores, classes, config=config)[0]


def suppress_and_number(
    boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig
) -> tuple[Detections[Tensor], Tensor]:
    """Return the result of `suppress`, and which of the N boxes each detection is, [B, D] int32, 0 where not valid."""
    if config.method == "none":
        selected = ops.where(scores > config.score_threshold, scores, 0.0)
    else:
        selected = _selected_scores(boxes, scores, classes, config=config)
    return _in_slots(boxes, classes, *_best(selected, config.max_detections))


def _selected_scores(boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig) -> Tensor:
    """Return the score of each box when it is selected, [B, N], 0 if it is not.

    The highest `max_detections` are the detections, ties by index; others may have a score too.
    """
    count = boxes.shape[1]
    examined = min(_EXAMINED, count)
    most = min(_SELECTED, examined)
    numbers = ops.arange(count, dtype="int32")
    better = numbers[:examined, None] > numbers[:examined]
    everywhere = sides_of(boxes[:, None])  # [B, 1, N]

    def log_survival(ours: Sides, others: Sides, our_classes: Tensor, other_classes: Tensor) -> Tensor:
        """Return the logarithm of the factor of each box's score after another is selected."""
        overlap = iou_of_sides(ours, others)
        if config.method == "gaussian":
            factor = ops.square(overlap) * (-1.0 / config.sigma)
        else:
            factor = ops.where(overlap > config.iou_threshold, _IMPOSSIBLE, 0.0)
        return ops.where(our_classes == other_classes, factor, 0.0) if config.per_class else factor

    def unfinished(remaining: Tensor, selected: Tensor, best: Tensor, places: Tensor) -> Tensor:
        """Return whether the best remaining box of an image precedes one of its first `max_detections`."""
        score, place = best[:, :1], places[:, :1]
        is_ahead = ops.logical_or(selected > score, ops.logical_and(selected == score, numbers < place))
        missing = ops.sum(ops.cast(is_ahead, "int32"), axis=1) < config.max_detections
        return ops.any(ops.logical_and(missing, score[:, 0] > config.score_threshold))

    def select(remaining: Tensor, selected: Tensor, best: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        own_boxes, own_classes = entries(boxes, places), entries(classes, places)
        ours, others = sides_of(own_boxes[:, :, None]), sides_of(own_boxes[:, None])  # [B, L, 1], [B, 1, L]
        among = log_survival(ours, others, own_classes[:, :, None], own_classes[:, None])  # [B, L, L]
        covered = ops.any(ops.logical_and(better, among < 0.0), axis=2)
        chosen = ops.logical_and(best > config.score_threshold, ops.logical_not(covered))
        highest, order = _top_places(ops.where(chosen, best, 0.0), most)  # [B, M]; others wait for a later iteration
        ours = sides_of(entries(own_boxes, order)[:, :, None])
        factors = log_survival(ours, everywhere, entries(own_classes, order)[:, :, None], classes[:, None])  # [B, M, N]
        factor = ops.exp(ops.sum(ops.where(highest[:, :, None] > 0.0, factors, 0.0), axis=1))
        selected = selected + scattered(highest, entries(places, order), count)
        remaining = ops.where(selected > 0.0, 0.0, remaining * factor)
        return remaining, selected, *_top_places(remaining, examined)

    start = (scores, ops.zeros_like(scores), *_top_places(scores, examined))
    return ops.while_loop(unfinished, select, start, maximum_iterations=config.max_detections)[1]


def _top_places(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` highest of [B, N] and their indices as int32, best first."""
    best, places = ops.top_k(scores, count)
    return best, ops.cast(places, "int32")


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers and values of the `count` highest of [B, N], best first, [B, count] each; padded with 0."""
    best, numbers = _top_places(scores, min(count, scores.shape[1]))
    behind = ((0, 0), (0, count - best.shape[1]))
    return ops.pad(numbers, behind), ops.pad(best, behind)


def _in_slots(
    boxes: Tensor, classes: Tensor, chosen: Tensor, chosen_scores: Tensor
) -> tuple[Detections[Tensor], Tensor]:
    """Return the chosen ones [B, D] of N as Detections, and their numbers, 0 where the score is 0."""
    valid = chosen_scores > 0.0
    detections = Detections(
        boxes=ops.where(valid[..., None], entries(boxes, chosen), 0.0),
        scores=chosen_scores,
        classes=ops.where(valid, ops.cast(entries(classes, chosen), "int32"), 0),
        valid=valid,
    )
    return detections, ops.where(valid, chosen, 0)
