"""RetinaNet's keys and their defaults: those of MLPerf's reference on Open Images (mlcommons/training, retinanet)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.nms_configs import NmsConfigs
from efficientdet.families.retinanet.presets import BACKBONES
from object_detection.geometry.anchor_conventions import retinanet_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel
from program_support.checked_fields import Count, InsideZeroToOne, Limit, NonNegative, Positive, at_least, between, one_of

RATE = 1e-4
_RATIOS = Limit(lambda value: isinstance(value, tuple | list) and len(value) > 0
                and all(isinstance(ratio, int | float) and 0 < ratio < math.inf for ratio in value),
                "ratios of width to height above 0 such as 2*1*0.5")


@dataclass(frozen=True, kw_only=True)
class RetinaNetHyperparameters(Hyperparameters):
    """Defaults as published."""

    # input
    image_size: int | str | tuple[int, int] = 800
    # "stretch" to image_size; "fit": the shorter side to image_size, the longer to longer_side at most
    resize: Annotated[str, one_of("stretch", "fit")] = "stretch"
    longer_side: Count = 1333  # of "fit"
    max_instances_per_image: int = 1000
    train_on_crowds: bool = True  # IsGroupOf of Open Images
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES.values())] = "resnext50_32x4d"
    batch_norm_epsilon: NonNegative = 1e-5
    # side of the smallest anchor of a level in its cells; at 0.25 the smallest anchor is 2 pixels wide
    anchor_scale: Annotated[float, at_least(0.25)] = 4.0
    aspect_ratios: Annotated[tuple, _RATIOS] = (2.0, 1.0, 0.5)  # width / height of a cell's anchors; each comes in three sizes
    trainable_backbone_stages: Annotated[int, between(0, 5)] = 3  # of five, the stem first; the others stay as loaded
    is_training_bn: bool = False
    head_kernel_stddev: Positive = 0.01  # of hidden kernels; with 0.03 a backbone from random weights learns at once
    # losses
    alpha: InsideZeroToOne = 0.25
    gamma: NonNegative = 2.0
    # suppression
    candidates_per_level: Count = 1000
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
