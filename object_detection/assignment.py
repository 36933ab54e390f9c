"""Which anchor is to learn which object: the assignment by overlap of one-stage detectors.

An anchor learns the object it overlaps most if their IoU reaches the threshold; and every object that overlaps any
anchor at all is learnt by the one it overlaps most, whatever the IoU (Liu et al. 2016, SSD, section 2.2).
"""

from keras import ops

from object_detection.box_coding import encode_boxes
from object_detection.box_geometry import pairwise_iou
from object_detection.structures import Objects, Targets, Tensor


def assign_anchors(objects: Objects, anchors: Tensor, *, positive_iou: float = 0.5) -> Targets:
    """The target of every anchor.

    objects: boxes [B, M, 4] in the pixels of the anchors; anchors [A, 4]. -> Targets with [B, A] entries, `ignored`
    False everywhere (this rule has no band between positive and negative). Crowds and padding are nobody's target.
    Where several objects want one anchor as their best, the first takes it.
    """
    learnable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))  # [B, M]
    overlap = pairwise_iou(objects.boxes, anchors)  # [B, M, A]
    overlap = ops.where(learnable[..., None], overlap, -1.0)
    best_object = ops.argmax(overlap, axis=1)  # [B, A]
    positive = ops.max(overlap, axis=1) >= positive_iou

    forced_object, forced = _forced_matches(overlap, num_anchors=anchors.shape[0])
    positive = ops.logical_or(positive, forced)
    matched = ops.where(forced, forced_object, best_object)  # [B, A]

    boxes = ops.take_along_axis(objects.boxes, matched[..., None], axis=1)  # [B, A, 4]
    classes = ops.take_along_axis(objects.classes, matched, axis=1)
    box_deltas = encode_boxes(boxes, anchors)
    return Targets(
        classes=ops.where(positive, classes, 0),
        box_deltas=ops.where(positive[..., None], box_deltas, 0.0),
        positive=positive,
        ignored=ops.zeros_like(positive),
    )


def _forced_matches(overlap: Tensor, *, num_anchors: int) -> tuple[Tensor, Tensor]:
    """overlap [B, M, A] -> the object that each anchor is the best of [B, A], and whether it is any's [B, A].

    Compares [B, M] best anchors with anchor numbers instead of scattering: it is one pass that XLA fuses, and the
    lowest object wins a tie by construction.
    """
    best_anchor = ops.where(ops.max(overlap, axis=2) > 0.0, ops.argmax(overlap, axis=2), -1)  # [B, M]
    numbers = ops.arange(num_anchors, dtype=best_anchor.dtype)
    wants = best_anchor[..., None] == numbers  # [B, M, A]
    return ops.argmax(ops.cast(wants, "int8"), axis=1), ops.any(wants, axis=1)
