"""Losses of one-stage detectors by name, and their weights."""

from collections.abc import Callable
from typing import Annotated

from keras import ops

from model.detection_model import DECAYED_WEIGHTS
from object_detection.geometry.box_geometry import IOU_KINDS
from object_detection.losses import focal_loss_of_classes, huber_loss, l1_loss, smooth_l1_loss, softmax_cross_entropy
from object_detection.structures import ScoredTargets, Targets, Tensor
from program_support.checked_fields import Positive, checked_part, one_of


def _focal(logits: Tensor, targets: Targets | ScoredTargets, losses: "LossConfig") -> Tensor:
    """Return the focal loss of each anchor, [B, A]."""
    classes = ops.where(targets.positive, targets.classes, -1)
    focal = focal_loss_of_classes(
        logits, classes, alpha=losses.alpha, gamma=losses.gamma, label_smoothing=losses.label_smoothing
    )
    return ops.sum(focal, axis=-1)  # sum over K first: one parallel pass


def _background_first(logits: Tensor, targets: Targets | ScoredTargets, losses: "LossConfig") -> Tensor:
    """Return the cross entropy of each anchor, [B, A]; class 0 of the softmax is the background."""
    return softmax_cross_entropy(logits, ops.where(targets.positive, targets.classes + 1, 0))


# logits [B, A, K] -> [B, A], including ignored anchors
ClassLoss = Callable[[Tensor, Targets | ScoredTargets, "LossConfig"], Tensor]
CLASS_LOSSES: dict[str, ClassLoss] = {"focal": _focal, "softmax cross entropy": _background_first}
QUALITY_FOCAL = "quality focal"  # its target is a score
BOX_LOSSES: dict[str, Callable[[Tensor, float], Tensor]] = {  # (errors, LossConfig.delta) -> loss of each entry
    "huber": lambda errors, delta: huber_loss(errors, delta=delta),
    "smooth l1": lambda errors, delta: smooth_l1_loss(errors, beta=delta),
    "l1": lambda errors, delta: l1_loss(errors),
}
POSITIVES_OF_EACH_IMAGE = "positives of each image"
NORMALIZERS = ("positives of the batch", POSITIVES_OF_EACH_IMAGE)


@checked_part
class LossConfig:
    """Kinds and weights of the losses; the defaults are EfficientDet's (Tan et al. 2020, section 5.1).

    Attributes:
        class_loss: "focal", with one sigmoid per class, alpha, gamma and label_smoothing; or "softmax cross entropy",
            whose first logit is the background's, the class of anchors without an object; or "quality focal", with one
            sigmoid per class whose target at a positive anchor is the IoU of its predicted box with its object, or the
            score of the assignment.
        box_loss: "huber", "smooth l1" (Huber loss divided by delta, which is its beta) or "l1", which does not use
            delta; or 1 - IoU: "iou", "giou", "diou" or "ciou".
        iou_loss_type: kind of an IoU loss beside box_loss.
        normalizer: "positives of the batch" divides the sum over a batch by its positives + 1, and losses of box
            coordinates by four times that; if the assignment scores positives and the class loss uses the scores,
            their sum takes the place of the number of positives;
            "positives of each image" divides each image's sums by its own positives (at least 1) and averages over
            images, as torchvision's detectors do.
        decays: weights that weight_decay applies to: "kernels" of convolutions, or "all", including batch norm and
            biases.
        hard_negative_ratio: number of negative anchors with the largest class loss to use per positive anchor of an
            image (SSD, Liu et al. 2016, section 2.2: 3); None: all negatives.
    """

    class_loss: Annotated[str, one_of(*CLASS_LOSSES, QUALITY_FOCAL)] = "focal"
    alpha: float = 0.25
    gamma: float = 1.5
    label_smoothing: float = 0.0
    class_loss_weight: float = 1.0
    box_loss: Annotated[str, one_of(*BOX_LOSSES, *IOU_KINDS)] = "huber"
    delta: float = 0.1
    box_loss_weight: float = 50.0
    iou_loss_type: Annotated[str, one_of(*IOU_KINDS)] | None = None
    iou_loss_weight: float = 1.0
    normalizer: Annotated[str, one_of(*NORMALIZERS)] = "positives of the batch"
    hard_negative_ratio: Positive | None = None
    weight_decay: float = 4e-5
    decays: Annotated[str, one_of(*DECAYED_WEIGHTS)] = "kernels"
