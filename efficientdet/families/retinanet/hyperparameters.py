"""RetinaNet's keys and their defaults: those of MLPerf's reference on Open Images (mlcommons/training, retinanet)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.limits import ABOVE_ZERO, Limit, at_least, one_of
from efficientdet.families.nms_configs import NMS_LIMITS, NmsConfigs
from efficientdet.families.retinanet.presets import BACKBONES
from object_detection.geometry.anchor_conventions import retinanet_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel

RESIZES = ("stretch", "fit")
RATE = 1e-4

_LIMITS = {
    "backbone_name": one_of(*BACKBONES.values()),
    "resize": one_of(*RESIZES),
    "longer_side": at_least(1),
    "batch_norm_epsilon": at_least(0),
    "trainable_backbone_stages": Limit(lambda value: 0 <= value <= 5, "0 to 5"),
    "anchor_scale": Limit(lambda value: value >= 0.25, "0.25 or more: the smallest anchor is 2 pixels wide then"),
    "aspect_ratios": Limit(
        lambda value: isinstance(value, tuple | list) and len(value) > 0
        and all(isinstance(ratio, int | float) and 0 < ratio < math.inf for ratio in value),
        "ratios of width to height above 0 such as 2*1*0.5"),
    "head_kernel_stddev": ABOVE_ZERO,
    "alpha": Limit(lambda value: 0 < value < 1, "above 0 and below 1"),
    "gamma": at_least(0),
    "candidates_per_level": at_least(1),
    **NMS_LIMITS,
}


@dataclass(frozen=True, kw_only=True)
class RetinaNetHyperparameters(Hyperparameters):
    """Defaults as published."""

    LIMITS: ClassVar[dict[str, Limit]] = Hyperparameters.LIMITS | _LIMITS

    # input
    image_size: int | str | tuple[int, int] = 800
    resize: str = "stretch"  # to image_size; "fit": the shorter side to image_size, the longer to longer_side at most
    longer_side: int = 1333  # of "fit"
    max_instances_per_image: int = 1000
    learn_crowds: bool = True  # IsGroupOf of Open Images
    # network
    backbone_name: str = "resnext50_32x4d"
    batch_norm_epsilon: float = 1e-5
    anchor_scale: float = 4.0  # side of the smallest anchor of a level in its cells
    aspect_ratios: tuple = (2.0, 1.0, 0.5)  # width / height of a cell's anchors; each comes in three sizes
    trainable_backbone_stages: int = 3  # of five, the stem being the first; the others stay as they are loaded
    is_training_bn: bool = False
    head_kernel_stddev: float = 0.01  # of hidden kernels at the start; 0.03 lets a backbone from random weights learn at once
    # losses
    alpha: float = 0.25
    gamma: float = 2.0
    # suppression
    candidates_per_level: int = 1000
    nms_configs: NmsConfigs = field(default_factory=lambda: NmsConfigs(
        method="hard", iou_thresh=0.5, score_thresh=0.05, max_output_size=300))
    # training
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "constant"
    lr_warmup_init: float = 1e-3 * RATE
    num_epochs: int = 26

    def comparable(self, key: str) -> Any:
        """Of aspect ratios, a tuple where JSON has a list."""
        return tuple(self.aspect_ratios) if key == "aspect_ratios" else super().comparable(key)

    def published_rate(self, images: int) -> float:
        """The same for 56 and for 8,192 images."""
        return RATE


def anchor_levels(
    hparams: RetinaNetHyperparameters, image_size: tuple[int, int], cells: Sequence[tuple[int, int]]
) -> list[AnchorLevel]:
    """Return the anchors of P3 to P7 of an image of this size, from the cells (rows, columns) of each level."""
    return rounded_levels(image_size, cells, sizes=retinanet_sizes(hparams.anchor_scale),
                          height_to_width=[1 / ratio for ratio in hparams.aspect_ratios])
