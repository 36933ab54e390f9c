"""RetinaNet (Lin et al. 2017) with ResNet backbones, as in MLPerf. Reads torchvision's COCO weights too."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.retinanet.hyperparameters import RetinaNetHyperparameters, anchor_levels
from efficientdet.families.retinanet.presets import ACTIVATIONS_PER_PIXEL, PRESETS, QUICKSTART
from efficientdet.families.torch_family import TorchFamily, pyramid_module, with_y_first
from object_detection.geometry.anchor_grid import AnchorGrid, feature_sizes, grid_of_levels

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.dense_detector import DenseDetector

_CLASS_PREDICTOR = "head/classification_head/cls_logits/"
_BOX_PREDICTOR = "head/regression_head/bbox_reg/"
_TORCHVISION_LOGITS = 91 * 9  # per cell
# torchvision loads its published COCO weights with an epsilon of 0, and keeps the aspect ratio.
TORCHVISION_CONVENTIONS = {"batch_norm_epsilon": 0.0, "resize": "fit"}


class RetinaNetFamily(TorchFamily[RetinaNetHyperparameters]):
    """The RetinaNet models."""

    name = "retinanet"
    body = "backbone/body/"
    hyperparameters = RetinaNetHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    conventions = ("batch_norm_epsilon", "resize", "longer_side", "min_level", "anchor_scale", "aspect_ratios")
    backbone_conventions = ("batch_norm_epsilon",)
    adaptable_conventions = ("resize", "longer_side")

    mlperf: ClassVar = {"benchmarks": {"2.0.0": "ssd", "5.0.0": "retinanet"}, "logs_weights": True}
    coco_class_rows: ClassVar = {91: 1}  # torchvision's rows are category ids

    def build(
        self, hparams: RetinaNetHyperparameters, *, num_classes: int, precision: str = "float32"
    ) -> "DenseDetector":
        from efficientdet.families.retinanet.build import build_detector

        return build_detector(hparams, num_classes=num_classes, precision=precision)

    def resize_rule(self, hparams: RetinaNetHyperparameters) -> "ResizeRule":
        from efficientdet.families.retinanet.build import resize_rule

        return resize_rule(hparams)

    def augmentation(self, hparams: RetinaNetHyperparameters) -> "Augmentation":
        """Return the augmentation: resize and random horizontal flip."""
        from dataset.input.augmentation import ResizeAndFlip

        return ResizeAndFlip(self.resize_rule(hparams), 0.5 if hparams.input_rand_hflip else 0.0)

    def anchors(self, hparams: RetinaNetHyperparameters) -> AnchorGrid:
        """Return the anchors of min_level to P7."""
        size = self.resize_rule(hparams).size
        return grid_of_levels(anchor_levels(hparams, size, feature_sizes(size, 7)[hparams.min_level :]))

    def activations_per_pixel(self, hparams: RetinaNetHyperparameters) -> float:
        """Return the value of the published network, also for changed hyperparameters."""
        return ACTIVATIONS_PER_PIXEL[hparams.backbone_name]

    def imported_conventions(self, arrays: Arrays, *, stated: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return torchvision's conventions for its COCO weights, recognized by the number of classes."""
        bias = arrays.get("head.classification_head.cls_logits.bias")
        return dict(TORCHVISION_CONVENTIONS) if bias is not None and len(bias) == _TORCHVISION_LOGITS else {}

    def translated_name(self, name: str) -> str:
        """Return a weight's name as in MLPerf and older versions of torchvision, which this project uses."""
        return re.sub(
            r"^(head\.\w+\.conv)\.(\d)\.0\.", lambda match: f"{match[1]}.{2 * int(match[2])}.", pyramid_module(name)
        )

    def translated_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """Reorder offsets to y first."""
        return with_y_first(array) if name.startswith(_BOX_PREDICTOR) else array

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in the last convolution of the classification head."""
        return name.startswith(_CLASS_PREDICTOR)

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return the length of the class predictor's bias per anchor."""
        bias, anchors = arrays.get(f"{_CLASS_PREDICTOR}bias"), _anchors_per_cell(arrays)
        return None if bias is None or not anchors or len(bias) % anchors else len(bias) // anchors

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the class predictor, whose last axis is (anchor, class)."""
        return ClassLayout(before=shapes[f"{_BOX_PREDICTOR}bias"][0] // 4) if self.is_class_predictor(name) else None


def _anchors_per_cell(arrays: Arrays) -> int:
    return len(arrays.get(f"{_BOX_PREDICTOR}bias", ())) // 4


FAMILY = RetinaNetFamily()
