"""Mask R-CNN (He et al. 2017) with ResNet backbones. Reads torchvision's COCO weights."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.mask_rcnn.hyperparameters import MaskRcnnHyperparameters, anchor_levels
from efficientdet.families.mask_rcnn.presets import (
    ACTIVATIONS_PER_MASK,
    ACTIVATIONS_PER_PIXEL,
    ACTIVATIONS_PER_REGION,
    PRESETS,
    QUICKSTART,
)
from efficientdet.families.torch_family import TorchFamily, pyramid_module, with_y_first
from object_detection.geometry.anchor_grid import AnchorGrid, feature_sizes, grid_of_levels

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.two_stage_detector import TwoStageDetector

_CLASS_PREDICTORS = ("roi_heads/box_predictor/", "roi_heads/mask_predictor/mask_fcn_logits/")
_BOX_PREDICTORS = ("rpn/head/bbox_pred/", "roi_heads/box_predictor/bbox_pred/")
_FLATTENED = "roi_heads/box_head/fc6/kernel"
_REGION_SIDE = 7  # cells; as in model.mask_rcnn, which imports Keras
_COCO_ROWS = 91  # torchvision's COCO weights have a row for each category id
# torchvision loads its published COCO weights with an epsilon of 0, and resizes to other sizes.
TORCHVISION_CONVENTIONS = {"conventions": "torchvision", "batch_norm_epsilon": 0.0, "resize": "fit", "image_size": 800}


class MaskRcnnFamily(TorchFamily[MaskRcnnHyperparameters]):
    """The Mask R-CNN models."""

    name = "mask_rcnn"
    hyperparameters = MaskRcnnHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    body = "backbone/body/"
    conventions = ("conventions", "batch_norm_epsilon", "resize", "longer_side", "anchor_scale")
    backbone_conventions = ("batch_norm_epsilon",)
    adaptable_conventions = ("resize", "longer_side")
    mlperf: ClassVar = {"benchmarks": {"0.0.0": "maskrcnn"}}
    coco_class_rows: ClassVar = {_COCO_ROWS - 1: 0}

    def build(
        self, hparams: MaskRcnnHyperparameters, *, num_classes: int, precision: str = "float32"
    ) -> "TwoStageDetector":
        from efficientdet.families.mask_rcnn.build import build_detector

        return build_detector(hparams, num_classes=num_classes, precision=precision)

    def resize_rule(self, hparams: MaskRcnnHyperparameters) -> "ResizeRule":
        from efficientdet.families.mask_rcnn.build import resize_rule

        return resize_rule(hparams)

    def augmentation(self, hparams: MaskRcnnHyperparameters) -> "Augmentation":
        """Return the augmentation: resize and random horizontal flip."""
        from dataset.input.augmentation import ResizeAndFlip

        return ResizeAndFlip(self.resize_rule(hparams), 0.5 if hparams.input_rand_hflip else 0.0)

    def anchors(self, hparams: MaskRcnnHyperparameters) -> AnchorGrid:
        """Return the anchors of the proposals on P2 to P6."""
        size = self.resize_rule(hparams).size
        return grid_of_levels(anchor_levels(hparams)(size, feature_sizes(size, 6)[2:]))

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
