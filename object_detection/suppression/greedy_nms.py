"""Exact greedy non-maximum suppression of many groups of boxes at once, with static shapes."""

from keras import ops

from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.structures import Tensor


def greedy_nms(boxes: Tensor, alive: Tensor, *, iou_threshold: float) -> Tensor:
    """Return which boxes remain: none overlaps a better remaining box by more than the threshold.

    boxes [..., N, 4], best first; alive [..., N] bool, False for boxes to leave out -> [..., N] bool.

    The result is the unique fixed point of "alive, and no better remaining box overlaps it". So the condition is
    evaluated for all boxes at once until nothing changes: n iterations settle the n best boxes, and a few iterations
    usually all of them.
    """
    numbers = ops.arange(boxes.shape[-2], dtype="int32")
    overlapping = ops.logical_and(pairwise_iou(boxes, boxes) > iou_threshold, numbers[:, None] < numbers)

    def iterate(_: Tensor | None, current: Tensor) -> tuple[Tensor, Tensor]:
        beside_better = ops.any(ops.logical_and(overlapping, current[..., None]), axis=-2)
        return current, ops.logical_and(alive, ops.logical_not(beside_better))

    start = (ops.zeros_like(alive), iterate(None, alive)[1])
    return ops.while_loop(lambda previous, current: ops.any(previous != current), iterate, start)[1]
