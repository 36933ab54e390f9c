"""SSD300 (Liu et al. 2016) with ResNet-34, as in the first rounds of MLPerf on COCO."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.ssd.hyperparameters import SsdHyperparameters
from efficientdet.families.ssd.presets import ACTIVATIONS_PER_PIXEL, PRESETS, PUBLISHED_FILES, QUICKSTART
from efficientdet.families.torch_family import TorchFamily
from model.torch_weights import YX_OF_XY
from object_detection.geometry.anchor_conventions import SSD300_BOXES_PER_CELL, ssd300_levels
from object_detection.geometry.anchor_grid import AnchorGrid, grid_of_levels

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.dense_detector import DenseDetector

_MLPERF_BACKBONES = {"resnet34": PUBLISHED_FILES["resnet34-2017"].file}
# The reference's backbone is two sequences: conv1, bn1, ReLU, pooling and the first two stages; the third stage.
_BODY_MODULES = {
    "model.layer1.0.": "conv1.",
    "model.layer1.1.": "bn1.",
    "model.layer1.4.": "layer1.",
    "model.layer1.5.": "layer2.",
    "model.layer2.0.": "layer3.",
}


class SsdFamily(TorchFamily[SsdHyperparameters]):
    """The SSD300 model."""

    name = "ssd"
    body = "backbone/"
    color_jitter = True
    hyperparameters = SsdHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    mlperf: ClassVar = {
        "benchmarks": {"0.0.0": "ssd", "2.0.0": None},  # the ssd of later rules is RetinaNet
        "values": {
            "model_bn_span": "images_of_batch_statistics",
            "max_samples": "num_cropping_iterations",
            "opt_learning_rate_decay_boundary_epochs": ("first_lr_drop_epoch", "second_lr_drop_epoch"),
        },
    }

    def build(self, hparams: SsdHyperparameters, *, num_classes: int, precision: str = "float32") -> "DenseDetector":
        from efficientdet.families.ssd.build import build_detector

        return build_detector(hparams, num_classes=num_classes, precision=precision)

    def resize_rule(self, hparams: SsdHyperparameters) -> "ResizeRule":
        """Return the resize rule: stretch to one size, antialiased as in Pillow."""
        from dataset.input.resize import Stretch

        return Stretch(hparams.input_size, antialias=True)

    def augmentation(self, hparams: SsdHyperparameters) -> "Augmentation":
        from efficientdet.families.ssd.build import augmentation

        return augmentation(hparams)

    def anchors(self, hparams: SsdHyperparameters) -> AnchorGrid:
        """Return the anchors of SSD300, scaled with the input size."""
        return grid_of_levels(ssd300_levels(hparams.input_size))

    def activations_per_pixel(self, hparams: SsdHyperparameters) -> float:
        """Return the value for the published image size and classes, also for changed hyperparameters."""
        return ACTIVATIONS_PER_PIXEL[hparams.backbone_name]

    def imagenet_backbone(self, hparams: SsdHyperparameters) -> str:
        """Return torchvision's ResNet-34 of 2017, which MLPerf's SSD uses; other backbones as in all families."""
        return _MLPERF_BACKBONES.get(hparams.backbone_name) or super().imagenet_backbone(hparams)

    def translated_name(self, name: str) -> str:
        """Translate a weight's name of the reference or of torchvision's classifiers."""
        for torch_module, ours in _BODY_MODULES.items():
            if name.startswith(torch_module):
                return f"backbone.{ours}{name.removeprefix(torch_module)}"
        return f"backbone.{name}" if name.startswith(("conv1.", "bn1.", "layer")) else name

    def translated_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        """Reorder offsets to y first; the reference's layout is [..., 4 x boxes]."""
        if not name.startswith("loc/"):
            return array
        return array.reshape(*array.shape[:-1], 4, _boxes_per_cell(name))[..., YX_OF_XY, :].reshape(array.shape)

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in a class predictor; there is one for each feature map."""
        return name.startswith("conf/")

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return the classes per anchor of the first class predictor's bias, without the background."""
        bias = arrays.get("conf/0/bias")
        return None if bias is None else len(bias) // SSD300_BOXES_PER_CELL[0] - 1

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the class predictors, whose last axis is (class, box) with the background first."""
        return ClassLayout(background=1, after=_boxes_per_cell(name)) if self.is_class_predictor(name) else None


def _boxes_per_cell(name: str) -> int:
    """Return the number of boxes per cell of the feature map of a predictor's weight."""
    return SSD300_BOXES_PER_CELL[int(name.split("/")[1])]  # such as loc/0/bias


FAMILY = SsdFamily()
