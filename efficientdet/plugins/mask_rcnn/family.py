"""Mask R-CNN (He et al. 2017) with ResNet backbones. Reads torchvision's COCO weights.

The default hyperparameters are torchvision's, with the input size of NVIDIA's TensorFlow 2 program.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.hyperparameters import Removed
from efficientdet.families.preset_values import NmsConfigs, suppression_config
from efficientdet.families.torch_family import TorchFamily, TorchHyperparameters, pyramid_module, with_y_first
from efficientdet.plugins.mask_rcnn.presets import (
    ACTIVATIONS_PER_MASK,
    ACTIVATIONS_PER_PIXEL,
    ACTIVATIONS_PER_REGION,
    BACKBONES,
    NMS_CONFIGS,
    PRESETS,
    QUICKSTART,
    proposal_sizes,
)
from object_detection.geometry.anchor_grid import AnchorGrid, feature_sizes, grid_of_levels, rounded_levels
from program_support.checked_fields import Count, NonNegative, Positive, Share, at_least, between, one_of

if TYPE_CHECKING:
    from efficientdet.plugins.mask_rcnn.detector import TwoStageDetector

_CLASS_PREDICTORS = ("roi_heads/box_predictor/", "roi_heads/mask_predictor/mask_fcn_logits/")
_BOX_PREDICTORS = ("rpn/head/bbox_pred/", "roi_heads/box_predictor/bbox_pred/")
_FLATTENED = "roi_heads/box_head/fc6/kernel"
_REGION_SIDE = 7  # cells; as in `network`, which imports Keras
_COCO_ROWS = 91  # torchvision's COCO weights have a row for each category id
# torchvision loads its published COCO weights with an epsilon of 0, and resizes to other sizes.
TORCHVISION_CONVENTIONS = {"batch_norm_epsilon": 0.0, "resize": "fit", "image_size": 800}


@dataclass(frozen=True, kw_only=True)
class MaskRcnnHyperparameters(TorchHyperparameters):
    """Hyperparameters of Mask R-CNN with the published defaults."""

    RATE_PER_64: ClassVar[float] = 4 * 0.02  # 0.02 per 16 images
    REMOVED: ClassVar[dict[str, Removed]] = TorchHyperparameters.REMOVED | {
        "conventions": Removed("the rules of NVIDIA's program (dle) had no published weights", ("torchvision",))
    }

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


class MaskRcnnFamily(TorchFamily[MaskRcnnHyperparameters]):
    """The Mask R-CNN models."""

    name = "mask_rcnn"
    hyperparameters = MaskRcnnHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    body = "backbone/body/"
    conventions = ("batch_norm_epsilon", "resize", "longer_side", "anchor_scale")
    backbone_conventions = ("batch_norm_epsilon",)
    adaptable_conventions = ("resize", "longer_side")
    mlperf: ClassVar = {"benchmark": "maskrcnn"}
    coco_class_rows: ClassVar = {_COCO_ROWS - 1: 0}

    def build(
        self, hparams: MaskRcnnHyperparameters, *, num_classes: int, precision: str = "float32"
    ) -> "TwoStageDetector":
        from efficientdet.plugins.mask_rcnn.detector import TwoStageConfig, TwoStageDetector
        from efficientdet.plugins.mask_rcnn.network import MaskRcnnConfig, build_mask_rcnn
        from efficientdet.plugins.mask_rcnn.regions import REGION_BOX_CODER, REGION_SUPPRESSION, ProposalConfig

        image_size = self.resize_rule(hparams).size
        networks = build_mask_rcnn(
            MaskRcnnConfig(
                backbone=hparams.backbone_name,
                image_size=image_size,
                num_classes=num_classes,
                epsilon=hparams.batch_norm_epsilon,
                trainable_stages=hparams.trainable_backbone_stages,
                trains_batch_norm=hparams.is_training_bn,
                anchor_scale=hparams.anchor_scale,
                proposals=ProposalConfig(candidates_per_level=hparams.candidates_per_level, kept=hparams.proposals),
                suppression=suppression_config(
                    hparams.nms_configs,
                    scores=REGION_SUPPRESSION.scores,
                    clip=True,
                    box_coder=REGION_BOX_CODER,
                ),
            ),
            precision=precision,
        )
        return TwoStageDetector(
            networks,
            TwoStageConfig(
                image_size=image_size,
                proposals=ProposalConfig(
                    candidates_per_level=hparams.training_candidates_per_level,
                    kept=hparams.training_proposals,
                ),
                anchors_per_image=hparams.anchors_an_image,
                regions_per_image=hparams.regions_an_image,
                positive_regions=hparams.positive_regions,
                region_beta=hparams.region_box_beta,
                weight_decay=hparams.decays_in_loss,
                decays=hparams.decayed_weights,
            ),
        )

    def anchors(self, hparams: MaskRcnnHyperparameters) -> AnchorGrid:
        """Return the anchors of the proposals on P2 to P6."""
        size = self.resize_rule(hparams).size
        sides = proposal_sizes(hparams.anchor_scale)
        return grid_of_levels(rounded_levels(size, feature_sizes(size, 6)[2:], sizes=sides))

    def activations_per_pixel(self, hparams: MaskRcnnHyperparameters) -> float:
        """Return the activations per pixel of the first stage and of the sampled regions and masks."""
        regions, pixels = hparams.regions_an_image, math.prod(self.resize_rule(hparams).size)
        of_regions = regions * (ACTIVATIONS_PER_REGION + hparams.positive_regions * ACTIVATIONS_PER_MASK)
        return ACTIVATIONS_PER_PIXEL[hparams.backbone_name] + of_regions / pixels

    def imported_conventions(self, arrays: Arrays, *, stated: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return torchvision's conventions for its COCO weights, recognized by the number of classes."""
        bias = arrays.get("roi_heads.box_predictor.cls_score.bias")
        return dict(TORCHVISION_CONVENTIONS) if bias is not None and len(bias) == _COCO_ROWS else {}

    def translated_name(self, name: str) -> str:
        """Return a weight's name as in older versions of torchvision, which this project uses."""
        name = re.sub(r"^rpn\.head\.conv\.0\.0\.", "rpn.head.conv.", pyramid_module(name))
        return re.sub(
            r"^(roi_heads\.mask_head\.)(\d)\.0\.", lambda match: f"{match[1]}mask_fcn{int(match[2]) + 1}.", name
        )

    def translated_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """Reorder offsets to y first, and the flattened features of a region to channels last."""
        if name == _FLATTENED:
            by_channel = array.reshape(-1, _REGION_SIDE, _REGION_SIDE, array.shape[-1])
            return by_channel.transpose(1, 2, 0, 3).reshape(array.shape)
        return with_y_first(array) if name.startswith(_BOX_PREDICTORS) else array

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in a predictor of classes, boxes or masks."""
        return name.startswith(_CLASS_PREDICTORS)

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return the length of the class predictor's bias without the background."""
        bias = arrays.get("roi_heads/box_predictor/cls_score/bias")
        return None if bias is None else len(bias) - 1

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the predictors: background, classes; of boxes (class, coordinate)."""
        after = 4 if name.startswith(_BOX_PREDICTORS) else 1
        return ClassLayout(background=1, after=after) if self.is_class_predictor(name) else None


FAMILY = MaskRcnnFamily()
