"""IoU of predicted boxes with their objects, as a box loss and as a target of the class loss."""

import dataclasses

from keras import ops

from object_detection.geometry.box_coding import BoxCoder, FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import generalized_iou, iou
from object_detection.structures import ScoredTargets, Targets, Tensor

_LARGEST_LOG_SIZE = 32.0  # e^32 times the side of an anchor: its square is still far below the largest float32


def iou_loss(
    box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder, *, kind: str
) -> Tensor:
    """Return 1 - IoU of the decoded boxes of positive anchors, 0 for the others.

    Args:
        box_deltas: [B, A, 4] float32; value and gradient are finite, also for boxes without an area.
        targets: [B, A] entries.
        anchors: [A, 4].
        box_coder: decodes box_deltas and the targets.
        kind: a penalty of `generalized_iou`.

    Returns:
        [B, A] float32.
    """
    predicted, assigned = _boxes_of_positives(box_deltas, targets, anchors, box_coder)
    return ops.where(targets.positive, 1.0 - generalized_iou(predicted, assigned, kind=kind), 0.0)


def iou_scores(box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder) -> Tensor:
    """Return the IoU of the decoded boxes of positive anchors, 0 for the others, without gradient: [B, A] float32."""
    predicted, assigned = _boxes_of_positives(ops.stop_gradient(box_deltas), targets, anchors, box_coder)
    return ops.where(targets.positive, iou(predicted, assigned), 0.0)


def _boxes_of_positives(
    box_deltas: Tensor, targets: Targets | ScoredTargets, anchors: Tensor, box_coder: BoxCoder
) -> tuple[Tensor, Tensor]:
    """Return the predicted and the assigned box of each anchor, [B, A, 4] each.

    Where an anchor is not positive both boxes are the anchor itself, so that an infinite box cannot make the gradient
    of a masked term NaN.
    """
    if isinstance(box_coder, FasterRcnnBoxCoder) and box_coder.log_size_limit is None:
        box_coder = dataclasses.replace(box_coder, log_size_limit=_LARGEST_LOG_SIZE)
    predicted = box_coder.decode(ops.where(targets.positive[..., None], box_deltas, 0.0), anchors)
    return predicted, box_coder.decode(targets.box_deltas, anchors)
