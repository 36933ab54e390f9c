"""EfficientDet D0 to D7x (Tan et al. 2020) and Lite 0 to 4, as in google/automl's and NVIDIA's programs."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.efficientdet import published_weights
from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters, anchor_config
from efficientdet.families.efficientdet.presets import (
    ACTIVATIONS_PER_PIXEL,
    LITE_NORMALIZATION,
    LITE_PREFIX,
    NVIDIA_CONVENTIONS,
    PRESETS,
    QUICKSTART,
)
from efficientdet.families.efficientdet.torch_names import from_torch
from efficientdet.families.efficientdet.torch_schemes import IMAGENET, TENSORFLOW, hyperparameters_of_torch, scheme_of
from efficientdet.families.family import Arrays, ClassLayout, Family, Shapes
from model.weight_arrays import is_object_based
from object_detection.geometry.anchor_grid import AnchorGrid, anchor_grid

if TYPE_CHECKING:
    from model.dense_detector import DenseDetector


_STRUCTURE = ("backbone_name", "fpn_num_filters", "fpn_cell_repeats", "box_class_repeats")


class EfficientDetFamily(Family[EfficientDetHyperparameters]):
    """The EfficientDet models."""

    name = "efficientdet"
    hyperparameters = EfficientDetHyperparameters
    presets = PRESETS
    quickstart = QUICKSTART
    conventions = (
        *NVIDIA_CONVENTIONS,
        "mean_rgb",
        "stddev_rgb",
        "min_level",
        "max_level",
        "num_scales",
        "anchor_scale",
        "act_type",
        "fpn_name",
        "separable_conv",
        "apply_bn_for_resampling",
        "conv_after_downsample",
        "conv_bn_act_pattern",
        "conv_padding",
        "batch_norm_epsilon",
        *_STRUCTURE,
    )
    adaptable_conventions = _STRUCTURE
    backbone_conventions = (
        "mean_rgb",
        "stddev_rgb",
        "normalizations",
        "act_type",
        "conv_padding",
        "batch_norm_epsilon",
    )
    coco_class_rows: ClassVar = {90: 0, 91: 0}

    def build(
        self, hparams: EfficientDetHyperparameters, *, num_classes: int, precision: str = "float32"
    ) -> "DenseDetector":
        from efficientdet.families.efficientdet.build import build_detector

        return build_detector(hparams, num_classes=num_classes, precision=precision)

    def anchors(self, hparams: EfficientDetHyperparameters) -> AnchorGrid:
        """Return the anchors of the levels min_level to max_level."""
        return anchor_grid(anchor_config(hparams), hparams.input_size)

    def activations_per_pixel(self, hparams: EfficientDetHyperparameters) -> float:
        """Return the value of the published network, also for changed hyperparameters."""
        return ACTIVATIONS_PER_PIXEL[hparams.model_name]

    def imagenet_backbone(self, hparams: EfficientDetHyperparameters) -> str:
        """Return the backbone's file of keras.applications, or of google/automl for Lite."""
        return hparams.backbone_name

    def imported_conventions(self, arrays: Arrays, *, stated: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the conventions of PyTorch's programs or TensorFlow's, of NVIDIA's detectors, and the normalization.

        NVIDIA's classifiers normalize their input once, which is the default; its detectors normalize it twice.
        google/automl's weights have ImageNet's normalization or, with AdvProp, another, which nothing shows.
        """
        if scheme := scheme_of(arrays):
            return hyperparameters_of_torch(arrays, scheme=scheme, stated=stated, padding=given.get("conv_padding"))
        if any(name.startswith(LITE_PREFIX) for name in arrays):
            return TENSORFLOW | LITE_NORMALIZATION
        if published_weights.is_keras(arrays):
            return TENSORFLOW | IMAGENET
        is_detector = is_object_based(arrays) and not published_weights.is_classifier(arrays)
        return TENSORFLOW | (NVIDIA_CONVENTIONS if is_detector else {})

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """Translate names of NVIDIA's, Keras's and PyTorch's layers; all others use the names of this project."""
        if is_object_based(arrays):
            return published_weights.from_nvidia(arrays, names)
        if published_weights.is_keras(arrays):
            return published_weights.from_keras(arrays, names)
        if scheme := scheme_of(arrays):
            return from_torch(arrays, names, scheme=scheme)
        return super().named_arrays(arrays, names, averaged=averaged)

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in the last convolution of the class network."""
        return name.startswith(published_weights.CLASS_PREDICTOR)

    def is_backbone(self, name: str) -> bool:
        return name.startswith("efficientnet-")

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        return published_weights.count_classes(arrays, shapes)

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the class predictor, whose last axis is (anchor, class)."""
        return (
            ClassLayout(before=published_weights.anchors_per_cell(shapes))
            if published_weights.has_classes(name)
            else None
        )


FAMILY = EfficientDetFamily()
