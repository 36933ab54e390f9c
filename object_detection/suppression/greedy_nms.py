"""Exact greedy non-maximum suppression of many groups of boxes at once, with static shapes."""

from keras import ops

from object_detection.geometry.box_geometry import pairwise_iou
from object_detection.structures import Tensor


def greedy_nms(boxes: Tensor, alive: Tensor, *, iou_threshold: float) -> Tensor:
    """Which boxes stay: none overlaps a better one that stays by more than the threshold.

    boxes [..., N, 4], best first; alive [..., N] bool, False for what does not take part -> [..., N] bool.

    What stays is the only answer to "alive, and no better box that stays overlaps it". So this is asked of all boxes at once,
    again and again: after n turns it is settled for the n best, and in fact for all after a few.
    """
    numbers = ops.arange(boxes.shape[-2], dtype="int32")
    overlapping = ops.logical_and(pairwise_iou(boxes, boxes) > iou_threshold, numbers[:, None] < numbers)

    def turn(_, kept):
        beside_better = ops.any(ops.logical_and(overlapping, kept[..., None]), axis=-2)
        return kept, ops.logical_and(alive, ops.logical_not(beside_better))

    return ops.while_loop(lambda before, kept: ops.any(before != kept), turn, (ops.zeros_like(alive), turn(None, alive)[1]))[1]
