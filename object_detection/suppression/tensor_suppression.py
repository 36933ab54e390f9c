"""Detections from the outputs of a dense detector: candidates, decoding, suppression.

Suppression is greedy, for all images at once, one selected box per iteration. Suppression per class is the same loop in
which a selected box affects only its own class: the scores of every class decrease monotonically, so selecting the
highest score of all classes first gives exactly the per-class results merged by score.
"""

from collections.abc import Sequence
from typing import Annotated

from keras import ops

from object_detection.gather import entries
from object_detection.geometry.box_coding import PLAIN_BOX_CODER, BoxCoder
from object_detection.geometry.box_geometry import clip_boxes, iou
from object_detection.structures import Detections, Tensor
from program_support.checked_fields import Count, Positive, checked_part, one_of

METHODS = ("hard", "gaussian", "none")
SCORES = ("sigmoid", "softmax")


@checked_part
class SuppressionConfig:
    """Post-processing: computation of scores and boxes from outputs, choice of candidates, suppression of overlaps.

    Attributes:
        method: "hard" removes boxes that overlap a better box by more than iou_threshold (the float32 below 0.5 also
            removes an IoU of 0.5, as in SSD's reference); "gaussian" multiplies their score by exp(-iou^2 / sigma)
            (Bodla et al. 2017, soft-NMS) and ignores iou_threshold, as the published evaluation; "none" keeps all
            boxes, for detectors trained without duplicates.
        per_class: a box suppresses only boxes of its own class.
        iou_pixel_offset: added to every side for the IoU; 1 is the convention of NVIDIA's evaluation.
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
    iou_pixel_offset: float = 0.0
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
) -> Detections[Tensor]:
    """Return Detections with D = max_detections. [B, A, K], [B, A, 4], [A, 4] -> candidates, decoding and suppression.

    level_sizes: see `top_candidates`. clip_to: [B, 2], height and width of the images, required if config.clip.
    """
    scores, classes, anchor_numbers = top_candidates(class_logits, config=config, level_sizes=level_sizes)
    deltas = entries(box_deltas, anchor_numbers)
    boxes = config.box_coder.decode(deltas, ops.take(anchors, anchor_numbers, axis=0))
    if config.clip:
        assert clip_to is not None
        boxes = clip_boxes(boxes, clip_to, last_pixel=config.box_coder.last_pixel)
    return suppress(boxes, scores, classes, config=config)


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
        found = _top_of_levels(values, config.candidates_per_level, sizes)
    elif config.candidates_per_class is not None:
        found = _top_of_classes(values, config.candidates_per_class)
    else:
        found = _top(values, config.candidates)
    best, classes, anchors = found
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
    _, anchor_numbers = ops.top_k(ops.max(values, axis=-1), kept_anchors)
    anchor_numbers = ops.sort(anchor_numbers, axis=-1)  # ascending, so that ties are ordered as in the flattened values
    kept = entries(values, anchor_numbers)  # [B, k, K]
    best, flat = ops.top_k(ops.reshape(kept, (-1, kept_anchors * num_classes)), min(count, kept_anchors * num_classes))
    anchors = entries(anchor_numbers, flat // num_classes)
    return best, flat % num_classes, anchors


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
    best, anchors = ops.top_k(ops.transpose(values, (0, 2, 1)), count)  # [B, K, count]
    classes = ops.zeros_like(anchors) + ops.arange(num_classes, dtype=anchors.dtype)[:, None]
    return tuple(ops.reshape(found, (-1, num_classes * count)) for found in (best, classes, anchors))


def suppress(boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig) -> Detections[Tensor]:
    """Return the result of greedy suppression. boxes [B, N, 4], scores [B, N], classes [B, N] int -> Detections."""
    return suppress_and_number(boxes, scores, classes, config=config)[0]


def suppress_and_number(
    boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig
) -> tuple[Detections[Tensor], Tensor]:
    """Return the result of `suppress`, and which of the N boxes each detection is, [B, D] int32, 0 where not valid."""
    alive = ops.where(scores > config.score_threshold, scores, 0.0)
    far_corner = ops.convert_to_tensor([0.0, 0.0, config.iou_pixel_offset, config.iou_pixel_offset], dtype=boxes.dtype)
    measured = boxes + far_corner
    if config.method == "none":
        return _in_slots(boxes, classes, *_best(alive, config.max_detections))
    numbers = ops.arange(boxes.shape[1], dtype="int32")
    slots = ops.arange(config.max_detections, dtype="int32")

    def select_one(step: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        remaining, chosen, chosen_scores = state
        best_score = ops.max(remaining, axis=1)[:, None]  # [B, 1]
        is_best = ops.cast(remaining >= best_score, "int32")  # Keras's argmax of floats compares their bits
        best = ops.cast(ops.argmax(is_best, axis=1), "int32")[:, None]  # [B, 1]
        overlap = iou(entries(measured, best), measured)  # [B, N]
        weight = _survival(overlap, config=config)
        if config.per_class:
            weight = ops.where(classes == entries(classes, best), weight, 1.0)
        remaining = remaining * ops.where(numbers == best, 0.0, weight)
        remaining = ops.where(remaining > config.score_threshold, remaining, 0.0)
        here = slots == step
        return remaining, ops.where(here, best, chosen), ops.where(here, best_score, chosen_scores)

    empty = ops.zeros_like(boxes[:, :1, 0])  # [B, 1], so that an unknown B stays unknown
    start = (alive, ops.cast(empty, "int32") + 0 * slots, empty + 0.0 * ops.cast(slots, empty.dtype))
    _, chosen, chosen_scores = ops.fori_loop(0, config.max_detections, select_one, start)
    return _in_slots(boxes, classes, chosen, chosen_scores)


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the numbers and values of the `count` highest of [B, N], best first, [B, count] each; padded with 0."""
    best, numbers = ops.top_k(scores, min(count, scores.shape[1]))
    behind = ((0, 0), (0, count - best.shape[1]))
    return ops.pad(ops.cast(numbers, "int32"), behind), ops.pad(best, behind)


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


def _survival(overlap: Tensor, *, config: SuppressionConfig) -> Tensor:
    """Return the factor of a box's score after a selected box overlaps it."""
    if config.method == "gaussian":
        return ops.exp(-ops.square(overlap) / config.sigma)
    return ops.cast(overlap <= config.iou_threshold, overlap.dtype)
