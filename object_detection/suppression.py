"""From the outputs of a dense detector to a short list of detections: candidates, decoding, suppression.

Greedy suppression of all images at once, one selected box an iteration. Suppression per class is the same loop in which a
selected box touches its own class only: every class's scores fall monotonically, so picking the highest score of all
classes first gives exactly the per-class results merged by score.
"""

from dataclasses import dataclass

from keras import ops

from object_detection.box_coding import decode_boxes
from object_detection.box_geometry import iou
from object_detection.errors import InputError
from object_detection.structures import Detections, Tensor

METHODS = ("hard", "gaussian")


@dataclass(frozen=True, kw_only=True)
class SuppressionConfig:
    """How overlapping detections are thinned out.

    method: "hard" drops what overlaps a better box by more than iou_threshold; "gaussian" multiplies its score by
    exp(-iou^2 / sigma) (Bodla et al. 2017, soft-NMS), whatever iou_threshold says, as the published evaluation does.
    per_class: a box suppresses its own class only. candidates: how many of all anchor x class scores enter.
    iou_pixel_offset: added to every side when overlaps are measured; 1 is the convention of NVIDIA's evaluation.
    """

    method: str = "gaussian"
    per_class: bool = True
    iou_threshold: float = 0.5
    score_threshold: float = 0.001
    sigma: float = 0.5
    candidates: int = 5000
    max_detections: int = 100
    iou_pixel_offset: float = 0.0

    def __post_init__(self):
        if self.method not in METHODS:
            raise InputError(f"suppression method {self.method!r}; wanted one of {', '.join(METHODS)}")
        if self.candidates < 1 or self.max_detections < 1 or self.sigma <= 0:
            raise InputError(f"suppression: {self.candidates} candidates, {self.max_detections} detections, sigma "
                             f"{self.sigma}; wanted all above zero")


def detections_from_outputs(
    class_logits: Tensor, box_deltas: Tensor, anchors: Tensor, *, config: SuppressionConfig
) -> Detections:
    """Candidates, decoding and suppression. [B, A, K], [B, A, 4], [A, 4] -> Detections with D = max_detections."""
    scores, classes, anchor_numbers = top_candidates(class_logits, config.candidates)
    deltas = _entries(box_deltas, anchor_numbers)
    boxes = decode_boxes(deltas, ops.take(anchors, anchor_numbers, axis=0))
    return suppress(boxes, scores, classes, config=config)


def top_candidates(class_logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` highest of all anchor x class scores, best first. [B, A, K] -> scores, classes, anchors, each [B, N].

    Exactly the flattened top k (of equal scores the one with the lower anchor, then class, comes first), found without
    sorting A x K values: an anchor of the k best scores is among the k anchors whose best class is highest.
    """
    num_anchors, num_classes = class_logits.shape[1], class_logits.shape[2]
    kept_anchors = min(count, num_anchors)
    _, anchor_numbers = ops.top_k(ops.max(class_logits, axis=-1), kept_anchors)
    anchor_numbers = ops.sort(anchor_numbers, axis=-1)  # ascending, so that ties fall as in the flattened order
    kept = _entries(class_logits, anchor_numbers)  # [B, k, K]
    logits, flat = ops.top_k(ops.reshape(kept, (-1, kept_anchors * num_classes)), min(count, kept_anchors * num_classes))
    anchors = _entries(anchor_numbers, flat // num_classes)
    return ops.sigmoid(logits), flat % num_classes, anchors


def suppress(boxes: Tensor, scores: Tensor, classes: Tensor, *, config: SuppressionConfig) -> Detections:
    """Greedy suppression. boxes [B, N, 4], scores [B, N], classes [B, N] int -> Detections with D = max_detections."""
    alive = ops.where(scores > config.score_threshold, scores, 0.0)
    far_corner = ops.convert_to_tensor([0.0, 0.0, config.iou_pixel_offset, config.iou_pixel_offset], dtype=boxes.dtype)
    measured = boxes + far_corner
    numbers = ops.arange(boxes.shape[1], dtype="int32")
    slots = ops.arange(config.max_detections, dtype="int32")

    def select_one(step, state):
        remaining, chosen, chosen_scores = state
        best = ops.cast(ops.argmax(remaining, axis=1), "int32")[:, None]  # [B, 1]
        best_score = ops.max(remaining, axis=1)[:, None]
        overlap = iou(_entries(measured, best), measured)  # [B, N]
        weight = _survival(overlap, config=config)
        if config.per_class:
            weight = ops.where(classes == _entries(classes, best), weight, 1.0)
        remaining = remaining * ops.where(numbers == best, 0.0, weight)
        remaining = ops.where(remaining > config.score_threshold, remaining, 0.0)
        here = slots == step
        return remaining, ops.where(here, best, chosen), ops.where(here, best_score, chosen_scores)

    empty = ops.zeros_like(boxes[:, :1, 0])  # [B, 1], so that an unknown B stays unknown
    start = (alive, ops.cast(empty, "int32") + 0 * slots, empty + 0.0 * ops.cast(slots, empty.dtype))
    _, chosen, chosen_scores = ops.fori_loop(0, config.max_detections, select_one, start)
    valid = chosen_scores > 0.0
    return Detections(
        boxes=ops.where(valid[..., None], _entries(boxes, chosen), 0.0),
        scores=chosen_scores,
        classes=ops.where(valid, ops.cast(_entries(classes, chosen), "int32"), 0),
        valid=valid,
    )


def _entries(values: Tensor, numbers: Tensor) -> Tensor:
    """Each image's entries of those numbers: [B, N, ...], [B, n] int32 -> [B, n, ...].

    What `take_along_axis` does too; with TensorFlow under it that one transposes all values at each call.
    """
    count = values.shape[1]
    first = count * ops.arange(ops.shape(values)[0], dtype="int32")[:, None]
    return ops.take(ops.reshape(values, (-1, *values.shape[2:])), first + numbers, axis=0)


def _survival(overlap: Tensor, *, config: SuppressionConfig) -> Tensor:
    """The factor by which a box's score shrinks beside a selected box that it overlaps this much."""
    if config.method == "gaussian":
        return ops.exp(-ops.square(overlap) / config.sigma)
    return ops.cast(overlap <= config.iou_threshold, overlap.dtype)
