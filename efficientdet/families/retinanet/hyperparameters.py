"""RetinaNet's hyperparameters with the defaults of MLPerf on Open Images (mlcommons/training, retinanet)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from efficientdet.families.nms_configs import NmsConfigs
from efficientdet.families.retinanet.presets import BACKBONES
from efficientdet.families.torch_family import TorchHyperparameters
from object_detection.geometry.anchor_conventions import retinanet_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel
from program_support.checked_fields import (
    Count,
    InsideZeroToOne,
    Limit,
    NonNegative,
    Positive,
    at_least,
    between,
    one_of,
)

RATE = 1e-4
_RATIOS = Limit(
    lambda value: (
        isinstance(value, tuple | list)
        and len(value) > 0
        and all(isinstance(ratio, int | float) and 0 < ratio < math.inf for ratio in value)
    ),
    "ratios of width to height above 0 such as 2*1*0.5",
)


@dataclass(frozen=True, kw_only=True)
class RetinaNetHyperparameters(TorchHyperparameters):
    """Hyperparameters of RetinaNet with the published defaults."""

    RATE_OPTIMIZER: ClassVar[str] = "adam"

    # input
    image_size: int | str | tuple[int, int] = 800
    # "stretch": resize to image_size; "fit": shorter side to image_size, longer side to at most longer_side
    resize: Annotated[str, one_of("stretch", "fit")] = "stretch"
    longer_side: Count = 1333  # pixels, with resize="fit"
    max_instances_per_image: int = 1000
    train_on_crowds: bool = True  # IsGroupOf boxes of Open Images are positives
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES.values())] = "resnext50_32x4d"
    batch_norm_epsilon: NonNegative = 1e-5
    min_level: Annotated[int, between(2, 3)] = 3  # finest level of the pyramid; 2 has four times as many anchors
    # side of the smallest anchor of a level in cells; with 0.25 the smallest anchor is 2 pixels wide
    anchor_scale: Annotated[float, at_least(0.25)] = 4.0
    aspect_ratios: Annotated[tuple, _RATIOS] = (2.0, 1.0, 0.5)  # width / height of anchors, each in three sizes
    trainable_backbone_stages: Annotated[int, between(0, 5)] = 3  # last of 5 stages (stem first); the others are frozen
    is_training_bn: bool = False
    head_kernel_stddev: Positive = 0.01  # initialization of hidden kernels; use 0.03 without pretrained weights
    # losses
    # which anchors are positive: by IoU thresholds; by ATSS; or by the network's outputs (task alignment)
    label_assignment: Annotated[str, one_of("iou", "atss", "task_aligned")] = "iou"
    # quality_focal, varifocal: the target is the IoU of the predicted box, or the score of task_aligned
    class_loss_type: Annotated[str, one_of("focal", "quality_focal", "varifocal")] = "focal"
    # in a crowd box, such as one of the complete image for a class without labels, nothing is background of its class
    ignore_in_crowds: bool = False
    alpha: InsideZeroToOne = 0.25  # of the focal loss
    gamma: NonNegative = 2.0  # of the focal loss
    box_loss_type: Annotated[str, one_of("l1", "giou", "diou", "ciou")] = "l1"
    box_loss_weight: NonNegative | None = None  # per positive; None: 1 for l1, 2 for an IoU loss
    # suppression
    candidates_per_level: Count = 1000  # per image, before suppression
    nms_configs: NmsConfigs = field(
        default_factory=lambda: NmsConfigs(method="hard", iou_thresh=0.5, score_thresh=0.05, max_output_size=300)
    )
    # training
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "constant"
    lr_warmup_init: float = 1e-3 * RATE
    num_epochs: int = 26

    def comparable(self, key: str) -> Any:
        """Return the value of a key in canonical form; aspect ratios as a tuple."""
        return tuple(self.aspect_ratios) if key == "aspect_ratios" else super().comparable(key)

    def published_rate(self, images: int) -> float:
        """Return the published peak learning rate, which does not depend on the batch size."""
        return RATE


def anchor_levels(
    hparams: RetinaNetHyperparameters, image_size: tuple[int, int], cells: Sequence[tuple[int, int]]
) -> list[AnchorLevel]:
    """Return the anchors of min_level to P7, from the image size and the cells (rows, columns) of each level."""
    return rounded_levels(
        image_size,
        cells,
        sizes=retinanet_sizes(hparams.anchor_scale, min_level=hparams.min_level),
        height_to_width=[1 / ratio for ratio in hparams.aspect_ratios],
    )
