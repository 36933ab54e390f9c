"""Mask R-CNN's keys and their defaults: torchvision's, with the input of NVIDIA's TensorFlow 2 program (presets of which the
name ends with -dle have the rest of that one too)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.mask_rcnn.presets import BACKBONES, NMS_CONFIGS
from efficientdet.families.nms_configs import NmsConfigs
from object_detection.geometry.anchor_conventions import centered_levels, proposal_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel
from program_support.checked_fields import Count, NonNegative, Positive, Share, at_least, between, one_of


@dataclass(frozen=True, kw_only=True)
class MaskRcnnHyperparameters(Hyperparameters):
    """Defaults as published."""

    RATE_PER_64: ClassVar[float] = 4 * 0.02  # 0.02 for every 16 images

    # of anchors, boxes, matching, regions and means of losses; "dle": NVIDIA's
    conventions: Annotated[str, one_of("torchvision", "dle")] = "torchvision"
    # input
    image_size: int | str | tuple[int, int] = "1344x832"
    # "letterbox" into image_size; "fit": the shorter side to image_size, the longer to longer_side at most
    resize: Annotated[str, one_of("letterbox", "fit")] = "letterbox"
    longer_side: Count = 1333  # of "fit"
    mask_size: Count = 112
    masks_in_whole_pixels: bool = True
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES.values())] = "resnet50"
    batch_norm_epsilon: NonNegative = 1e-5
    anchor_scale: Positive = 8.0  # side of the square anchor of a level in its cells
    trainable_backbone_stages: Annotated[int, between(0, 5)] = 3  # of five, the stem first; the others stay as loaded
    is_training_bn: bool = False
    candidates_per_level: Count = 1000  # anchors of each level that may become proposals
    proposals: Count = 1000  # of an image
    # losses
    training_candidates_per_level: Count = 2000
    training_proposals: Count = 2000
    anchors_an_image: Count = 256
    regions_an_image: Annotated[Count, at_least(4)] = 512
    positive_regions: Share = 0.25
    region_box_beta: Positive = 1 / 9
    decayed_weights: Annotated[str, one_of("all", "kernels")] = "all"  # or "kernels": not batch norm and biases
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
        return partial(centered_levels, scale=hparams.anchor_scale)
    return partial(rounded_levels, sizes=proposal_sizes(hparams.anchor_scale))
