"""Mask R-CNN's hyperparameters. Defaults are torchvision's, with the input size of NVIDIA's TensorFlow 2 program.

Presets whose names end with -dle have all defaults of NVIDIA's program.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from efficientdet.families.mask_rcnn.presets import BACKBONES, NMS_CONFIGS
from efficientdet.families.nms_configs import NmsConfigs
from efficientdet.families.torch_family import TorchHyperparameters
from object_detection.geometry.anchor_conventions import centered_levels, proposal_sizes, rounded_levels
from object_detection.geometry.anchor_grid import AnchorLevel
from program_support.checked_fields import Count, NonNegative, Positive, Share, at_least, between, one_of


@dataclass(frozen=True, kw_only=True)
class MaskRcnnHyperparameters(TorchHyperparameters):
    """Hyperparameters of Mask R-CNN with the published defaults."""

    RATE_PER_64: ClassVar[float] = 4 * 0.02  # 0.02 per 16 images

    # conventions of anchors, boxes, matching, regions and loss normalization; "dle": NVIDIA's
    conventions: Annotated[str, one_of("torchvision", "dle")] = "torchvision"
    # input
    image_size: int | str | tuple[int, int] = "1344x832"
    # "letterbox": pad to image_size; "fit": shorter side to image_size, longer side to at most longer_side
    resize: Annotated[str, one_of("letterbox", "fit")] = "letterbox"
    longer_side: Count = 1333  # pixels, with resize="fit"
    mask_size: Count = 112  # side of the ground truth mask of an object in pixels
    masks_in_whole_pixels: bool = True
    # network
    backbone_name: Annotated[str, one_of(*BACKBONES.values())] = "resnet50"
    batch_norm_epsilon: NonNegative = 1e-5
    anchor_scale: Positive = 8.0  # side of the square anchor of a level in cells
    trainable_backbone_stages: Annotated[int, between(0, 5)] = 3  # last of 5 stages (stem first); the others are frozen
    is_training_bn: bool = False
    candidates_per_level: Count = 1000  # anchors per level before suppression of proposals
    proposals: Count = 1000  # proposals per image
    # losses
    training_candidates_per_level: Count = 2000  # candidates_per_level in training
    training_proposals: Count = 2000  # proposals in training
    anchors_an_image: Count = 256  # sampled anchors per image
    regions_an_image: Annotated[Count, at_least(4)] = 512  # sampled regions per image
    positive_regions: Share = 0.25  # maximum fraction of positive regions
    region_box_beta: Positive = 1 / 9  # beta of the smooth L1 loss of regions
    decayed_weights: str = "all"
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
    hparams: MaskRcnnHyperparameters,
) -> Callable[[tuple[int, int], Sequence[tuple[int, int]]], Sequence[AnchorLevel]]:
    """Return the function from image size and cells (rows, columns) per level to the anchors of P2 to P6."""
    if hparams.conventions == "dle":
        return partial(centered_levels, scale=hparams.anchor_scale)
    return partial(rounded_levels, sizes=proposal_sizes(hparams.anchor_scale))
