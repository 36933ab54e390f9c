"""SSD300 (Liu et al. 2016) with ResNet-34, as in the first rounds of MLPerf on COCO (mlcommons/training, ssd-v1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from efficientdet.families.family import Arrays, ClassLayout, Shapes
from efficientdet.families.hyperparameters import Removed
from efficientdet.families.preset_values import (
    LearningRate,
    NmsConfigs,
    QuickstartRecipe,
    StartRecipe,
    suppression_config,
)
from efficientdet.families.published_files import BACKBONES
from efficientdet.families.torch_family import YX_OF_XY, TorchFamily, TorchHyperparameters
from efficientdet.plugins.ssd.default_boxes import SSD300_BOXES_PER_CELL, ssd300_counts, ssd300_levels
from object_detection.geometry.anchor_grid import AnchorGrid, grid_of_levels
from program_support.checked_fields import Count, Positive, one_of

if TYPE_CHECKING:
    from dataset.input.augmentation import Augmentation
    from dataset.input.resize import ResizeRule
    from model.dense_detector import DenseDetector

NMS_CONFIGS = NmsConfigs(method="hard", iou_thresh=0.5, score_thresh=0.05, max_nms_inputs=16000, max_output_size=200)
PRESETS = {"ssd300-resnet34": {"backbone_name": "resnet34"}}
# Activations per input pixel of each network with 80 classes (test_memory.py counts them).
ACTIVATIONS_PER_PIXEL = {"resnet18": 289, "resnet34": 460, "resnet50": 1224}

# Near the settings of the 160 steps in docs/reference/detectors.md; measured in docs/measurements/accuracy.md.
QUICKSTART = QuickstartRecipe(
    settings={
        "clip_gradients_norm": 10.0,
        "lr_decay_method": "cosine",
        "moving_average_decay": 0.998,
        "train_on_crowds": False,
    },
    random=StartRecipe(rate=LearningRate(per_image=0.00125, maximum=0.02), steps=2200),
    efficiency=0.75,
    detector=StartRecipe(rate=LearningRate(per_image=0.0003, maximum=0.005), steps=250),
    stretches=True,
    min_side=257,  # its last feature map has no cell otherwise
)
_MLPERF_BACKBONES = {"resnet34": BACKBONES["resnet34-2017"].file}
# The reference's backbone is two sequences: conv1, bn1, ReLU, pooling and the first two stages; the third stage.
_BODY_MODULES = {
    "model.layer1.0.": "conv1.",
    "model.layer1.1.": "bn1.",
    "model.layer1.4.": "layer1.",
    "model.layer1.5.": "layer2.",
    "model.layer2.0.": "layer3.",
}


@dataclass(frozen=True, kw_only=True)
class SsdHyperparameters(TorchHyperparameters):
    """Hyperparameters of SSD300 with the published defaults."""

    RATE_PER_64: ClassVar[float] = 2 * 2.5e-3  # 2.5e-3 per 32 images
    REMOVED: ClassVar[dict[str, Removed]] = TorchHyperparameters.REMOVED | {
        key: Removed("the color jitter is always that of MLPerf", (value,))
        for key, value in {"brightness": 0.125, "contrast": 0.5, "saturation": 0.5, "hue": 0.05}.items()
    }

    # input
    image_size: int | str | tuple[int, int] = 300
    max_instances_per_image: int = 200
    train_on_crowds: bool = True
    num_cropping_iterations: Count = 1  # tries per minimum overlap of the random crop; MLPerf: 1 or 50
    # network
    backbone_name: Annotated[str, one_of(*ACTIVATIONS_PER_PIXEL)] = "resnet34"
    # losses
    hard_negative_ratio: Positive = 3.0  # negatives per positive
    decayed_weights: str = "all"
    # suppression
    candidates_per_class: Count = 200  # per image, before suppression
    nms_configs: NmsConfigs = NMS_CONFIGS
    # training
    weight_decay: float = 5e-4
    clip_gradients_norm: float = 0.0
    moving_average_decay: float = 0.0
    lr_decay_method: str = "stepwise"
    lr_warmup_init: float = 0.0
    lr_warmup_epoch: float = 2.619685  # 300 steps with a batch size of 1,024 on COCO
    first_lr_drop_epoch: float = 40.0
    second_lr_drop_epoch: float = 50.0
    num_epochs: int = 70

    def __post_init__(self):
        super().__post_init__()
        ssd300_counts(self.input_size)


class SsdFamily(TorchFamily[SsdHyperparameters]):
    """The SSD300 model."""

    name = "ssd"
    body = "backbone/"
    hyperparameters = SsdHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    mlperf: ClassVar = {
        "benchmark": "ssd",
        "values": {
            "model_bn_span": "images_of_batch_statistics",
            "max_samples": "num_cropping_iterations",
            "opt_learning_rate_decay_boundary_epochs": ("first_lr_drop_epoch", "second_lr_drop_epoch"),
        },
    }

    def build(self, hparams: SsdHyperparameters, *, num_classes: int, precision: str = "float32") -> "DenseDetector":
        from efficientdet.plugins.ssd.network import build_ssd
        from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
        from object_detection.assignment.anchor_assignment import IouAssigner
        from object_detection.geometry.box_coding import FasterRcnnBoxCoder

        network = build_ssd(
            hparams.input_size,
            num_classes=num_classes,
            backbone=hparams.backbone_name,
            trains_batch_norm=hparams.is_training_bn,
            precision=precision,
        )
        return DenseDetector(
            network,
            DenseDetectorConfig(
                image_size=hparams.input_size,
                anchors=ssd300_levels(hparams.input_size),
                assigner=IouAssigner(positive_iou=0.5, strictly=True, claim="best, last"),
                losses=LossConfig(
                    class_loss="softmax cross entropy",
                    box_loss="smooth l1",
                    box_loss_weight=1.0,
                    delta=1.0,
                    normalizer="positives of each image",
                    hard_negative_ratio=hparams.hard_negative_ratio,
                    weight_decay=hparams.decays_in_loss,
                    decays=hparams.decayed_weights,
                ),
                suppression=suppression_config(
                    hparams.nms_configs,
                    drops_equal=True,
                    scores="softmax",
                    candidates_per_class=hparams.candidates_per_class,
                    # the reference's variances 0.1 and 0.2
                    box_coder=FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0)),
                ),
            ),
        )

    def resize_rule(self, hparams: SsdHyperparameters) -> "ResizeRule":
        """Return the resize rule: stretch to one size, antialiased as in Pillow."""
        from dataset.input.resize import stretch

        return stretch(hparams.input_size, antialias=True)

    def augmentation(self, hparams: SsdHyperparameters) -> "Augmentation":
        """Return the augmentation: random crop and horizontal flip."""
        from efficientdet.plugins.ssd.overlap_crop import OverlapCrop

        return OverlapCrop(
            hparams.input_size,
            tries=hparams.num_cropping_iterations,
            flip_probability=0.5 if hparams.input_rand_hflip else 0.0,
        )

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
