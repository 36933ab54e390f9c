"""Mask R-CNN's keys and their defaults: torchvision's, with the input of NVIDIA's TensorFlow 2 program (presets of which the
name ends with -dle have the rest of that one too)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.limits import ABOVE_ZERO, SHARE, Limit, at_least, one_of
from efficientdet.families.mask_rcnn.presets import BACKBONES, NMS_CONFIGS
from efficientdet.families.nms_configs import NMS_LIMITS, NmsConfigs
from object_detection.geometry.anchor_conventions import centred_levels, proposal_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel

RESIZES = ("letterbox", "fit")
DECAYS = ("all", "kernels")
CONVENTIONS = ("torchvision", "dle")

_LIMITS = {
    "backbone_name": one_of(*BACKBONES.values()),
    "conventions": one_of(*CONVENTIONS),
    "resize": one_of(*RESIZES),
    "longer_side": at_least(1),
    "batch_norm_epsilon": at_least(0),
    "trainable_backbone_stages": Limit(lambda value: 0 <= value <= 5, "0 to 5"),
    "anchor_scale": ABOVE_ZERO,
    "mask_size": at_least(1),
    "candidates_per_level": at_least(1),
    "proposals": at_least(1),
    "training_candidates_per_level": at_least(1),
    "training_proposals": at_least(1),
    "anchors_an_image": at_least(1),
    "regions_an_image": at_least(4),
    "positive_regions": SHARE,
    "region_box_beta": ABOVE_ZERO,
    "decayed_weights": one_of(*DECAYS),
    **NMS_LIMITS,
}


@dataclass(frozen=True, kw_only=True)
class MaskRcnnHyperparameters(Hyperparameters):
    """Defaults as published."""

    LIMITS: ClassVar[dict[str, Limit]] = Hyperparameters.LIMITS | _LIMITS
    RATE_PER_64: ClassVar[float] = 4 * 0.02  # 0.02 for every 16 images

    conventions: str = "torchvision"  # or "dle", NVIDIA's: of anchors, boxes, matching, regions, and means of losses
    # input
    image_size: int | str | tuple[int, int] = "1344x832"
    resize: str = "letterbox"  # into image_size; "fit": the shorter side to image_size, the longer to longer_side at most
    longer_side: int = 1333  # of "fit"
    mask_size: int = 112
    masks_in_whole_pixels: bool = True
    # network
    backbone_name: str = "resnet50"
    batch_norm_epsilon: float = 1e-5
    anchor_scale: float = 8.0  # side of the square anchor of a level in its cells
    trainable_backbone_stages: int = 3  # of five, the stem being the first; the others stay as they are loaded
    is_training_bn: bool = False
    candidates_per_level: int = 1000  # anchors of each level that may become proposals
    proposals: int = 1000  # of an image
    # losses
    training_candidates_per_level: int = 2000
    training_proposals: int = 2000
    anchors_an_image: int = 256
    regions_an_image: int = 512
    positive_regions: float = 0.25
    region_box_beta: float = 1 / 9
    decayed_weights: str = "all"  # or "kernels": not batch norm and biases
    # suppression
    nms_configs: NmsConfigs = NMS_CONFIGS
    # training
    weight_decay: float = 1e-4
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "stepwise"
    lr_warmup_init: float = 0.0
    lr_warmup_epoch: float = 0.0
    lr_warmup_least_steps: int = 500
    first_lr_drop_epoch: float = 8.0
    second_lr_drop_epoch: float = 11.0
    num_epochs: int = 12


def anchor_levels(
    hparams: MaskRcnnHyperparameters
) -> Callable[[tuple[int, int], Sequence[tuple[int, int]]], Sequence[AnchorLevel]]:
    """Return the function of the anchors of P2 to P6: from the image's size and the cells (rows, columns) of each level."""
    if hparams.conventions == "dle":
        return partial(centred_levels, scale=hparams.anchor_scale)
    return partial(rounded_levels, sizes=proposal_sizes(hparams.anchor_scale))
