"""Label assignment and losses of a dense family, from its hyperparameters.

The names are those of `LossConfig` with underscores. The published losses keep their published weights.
"""

from typing import Any

from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.assignment.assigner import Assigner
from object_detection.assignment.atss import AtssAssigner
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.geometry.box_geometry import IOU_KINDS

IOU_LOSS_WEIGHT = 2.0  # as in ATSS, GFL and TOOD


def assigner_of(label_assignment: str, *, by_iou: IouAssigner) -> Assigner:
    """Return the assigner of hparam label_assignment: by_iou, the family's thresholds, for "iou"."""
    assigners = {"iou": by_iou, "atss": AtssAssigner(), "task_aligned": TaskAlignedAssigner()}
    return assigners[label_assignment]


def box_loss_of(box_loss_type: str, weight: float | None, *, published_weight: float) -> dict[str, Any]:
    """Return the fields `box_loss` and `box_loss_weight` of `LossConfig`.

    weight: hparam box_loss_weight; None: 2 for an IoU loss, published_weight for the family's own loss.
    """
    if weight is None:
        weight = IOU_LOSS_WEIGHT if box_loss_type in IOU_KINDS else published_weight
    return {"box_loss": box_loss_type.replace("_", " "), "box_loss_weight": weight}
