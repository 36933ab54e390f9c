"""EfficientDet D0 to D7x (Tan et al. 2020) and Lite 0 to 4, as in google/automl's and NVIDIA's programs.

The names of weights are those of google/automl's name-based checkpoints, which need no translation. NVIDIA's
object-based checkpoints and the files of keras.applications number their layers; the functions here map the numbers to
names.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters, anchor_config
from efficientdet.families.efficientdet.presets import (
    ACTIVATIONS_PER_PIXEL,
    IMAGENET,
    LITE_NORMALIZATION,
    LITE_PREFIX,
    NVIDIA_CONVENTIONS,
    PRESETS,
    QUICKSTART,
    TENSORFLOW,
)
from efficientdet.families.family import Arrays, ClassLayout, Family, Shapes
from model.weight_arrays import is_object_based, is_of_model
from object_detection.geometry.anchor_grid import AnchorGrid, anchor_grid
from program_support.errors import InputError
from program_support.plugins import load_plugins

if TYPE_CHECKING:
    from model.dense_detector import DenseDetector


OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
CLASS_PREDICTOR = "class_net/class-predict/"
_WITH_CLASSES = re.compile(r"class_net/class-predict/(pointwise_kernel|kernel|bias)")
_KERAS_NORMALIZATION = "layers/normalization/vars/"
_KERAS_LAYER = re.compile(r"^efficientnet-b\d/.*?(depthwise_conv2d|conv2d|batch_normalization)[_\d]*$")
_CLASS_BIAS, _BOX_BIAS = "class_net/class-predict/bias", "box_net/box-predict/bias"
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
        if foreign := _foreign_weights(arrays):
            return foreign.conventions(arrays, stated=stated, padding=given.get("conv_padding"))
        if any(name.startswith(LITE_PREFIX) for name in arrays):
            return TENSORFLOW | LITE_NORMALIZATION
        if is_keras(arrays):
            return TENSORFLOW | IMAGENET
        is_detector = is_object_based(arrays) and not is_classifier(arrays)
        return TENSORFLOW | (NVIDIA_CONVENTIONS if is_detector else {})

    def named_arrays(self, arrays: Arrays, names: Iterable[str], *, averaged: bool) -> dict[str, np.ndarray]:
        """Translate names of NVIDIA's, Keras's and PyTorch's layers; all others use the names of this project."""
        if is_object_based(arrays):
            return from_nvidia(arrays, names)
        if is_keras(arrays):
            return from_keras(arrays, names)
        if foreign := _foreign_weights(arrays):
            return foreign.named_arrays(arrays, names)
        return super().named_arrays(arrays, names, averaged=averaged)

    def is_class_predictor(self, name: str) -> bool:
        """Return whether a weight is in the last convolution of the class network."""
        return name.startswith(CLASS_PREDICTOR)

    def is_backbone(self, name: str) -> bool:
        return name.startswith("efficientnet-")

    def count_classes(self, arrays: Arrays, shapes: Mapping[str, tuple[int, ...]]) -> int | None:
        """Return the length of the class predictor's bias per anchor; None if it does not fit the network's anchors."""
        bias = arrays.get(_CLASS_BIAS)
        return None if bias is None or len(bias) % _anchors_per_cell(shapes) else len(bias) // _anchors_per_cell(shapes)

    def class_layout(self, name: str, shapes: Shapes) -> ClassLayout | None:
        """Return the layout of the class predictor, whose last axis is (anchor, class)."""
        return ClassLayout(before=_anchors_per_cell(shapes)) if _WITH_CLASSES.fullmatch(name) else None


def _foreign_weights(arrays: Arrays) -> Any:
    """Return the plugin that translates these arrays of another program; None if none recognizes them.

    A plugin has three methods: `recognizes(names)`; `conventions(names, stated=, padding=)`, see
    `Family.imported_conventions`; `named_arrays(arrays, names)`.
    """
    return next((one for one in load_plugins("efficientdet.efficientnet_weights") if one.recognizes(arrays)), None)


def from_nvidia(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Rename the arrays of NVIDIA's object-based checkpoint and drop those of the optimizer.

    `names` are the names of the model's weights in the order of its layers, in which NVIDIA's backbone numbers them.
    The main values are used: in an `emackpt-N` these are the averaged weights. An array without a counterpart keeps its
    name, and `check_against` reports it. A SavedModel of a classifier is a backbone.
    """
    ours = {theirs: name for name, theirs in _nvidia_names(names).items()}
    root = "backbone/" if is_classifier(arrays) else ""
    model = {root + name.removesuffix(OBJECT_SUFFIX): array for name, array in arrays.items() if is_of_model(name)}
    return {ours.get(name, name): array for name, array in model.items()}


def is_classifier(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the object graph's root is an EfficientNet, as in NVIDIA's SavedModels for classification."""
    return any(name.startswith("layer_with_weights-") for name in arrays)


def is_keras(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the arrays are those of a file of Keras (`weights/keras_files.py`)."""
    return any(name.startswith(_KERAS_NORMALIZATION) for name in arrays)


def from_keras(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """Rename the arrays of a model of keras.applications, whose layers of each class have the same order.

    The published files contain the mean 0.485.. and as "variance" 0.229.., which is the standard deviation.
    keras.applications compensates by one more division, so in total they were trained on the inputs that the detector
    provides.

    Raises:
        InputError: the weights were trained on inputs that were normalized differently.
    """
    from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV

    mean, variance = (arrays[f"{_KERAS_NORMALIZATION}{number}"].reshape(-1) for number in range(2))
    # A file with the true variance was trained on the same inputs.
    scaled = any(np.allclose(variance, np.array(IMAGENET_STDDEV, np.float32) ** power, atol=1e-3) for power in (1, 2))
    if not np.allclose(mean, IMAGENET_MEAN, atol=1e-3) or not scaled:
        raise InputError(
            f"backbone weights were trained on inputs with mean {mean.tolist()} and variance {variance.tolist()}; "
            f"expected ImageNet's {list(IMAGENET_MEAN)} and {list(IMAGENET_STDDEV)} as in the files of "
            "keras.applications"
        )
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition("/")[0], []).append(name)
    renamed, numbers = {}, Counter[str]()
    for layer, weights in layers.items():
        if match := _KERAS_LAYER.search(layer):
            kind = f"{match[1]}_{numbers[match[1]]}".removesuffix("_0")
            numbers[match[1]] += 1
            for place, name in enumerate(weights):
                if (array := arrays.get(f"layers/{kind}/vars/{place}")) is not None:
                    renamed[name] = array
    return renamed


def _nvidia_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name the path in NVIDIA's object graph."""
    backbone_layers: dict[str, int] = {}
    translated = {}
    for name in names:
        layer, role = name.rsplit("/", 1)
        if layer.startswith("efficientnet-"):
            number = backbone_layers.setdefault(layer, len(backbone_layers))
            translated[name] = f"backbone/layer_with_weights-{number}/{role}"
        elif layer.startswith("resample_p"):
            translated[name] = re.sub(r"^resample_p\d+", "resample_layers/0", name)
        elif layer.startswith("fpn_cells/"):
            path = re.sub(r"^fpn_cells/cell_(\d+)/fnode(\d+)", r"fpn_cells/cells/\1/fnodes/\2", name)
            path = re.sub(r"/op_after_combine\d+/conv/", "/op_after_combine/conv_op/", path)
            path = re.sub(r"/op_after_combine\d+/bn/", "/op_after_combine/bn/", path)
            translated[name] = re.sub(r"/resample_(\d+)_\d+_\d+/", r"/resample_layers/\1/", path)
        else:
            translated[name] = _nvidia_head_name(name)
    return translated


def _nvidia_head_name(name: str) -> str:
    net, layer, role = name.split("/")  # class_net/class-1-bn-4/gamma
    kind = net.removesuffix("_net")
    if layer == f"{kind}-predict":
        return f"{net}/{'classes' if kind == 'class' else 'boxes'}/{role}"
    if normalized := re.fullmatch(rf"{kind}-(\d+)-bn-(\d+)", layer):
        return f"{net}/bns/{normalized[1]}/{int(normalized[2]) - 3}/{role}"  # from the lowest level, 3
    return f"{net}/conv_ops/{layer.removeprefix(kind + '-')}/{role}"


def _anchors_per_cell(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of anchors per cell of the network."""
    return shapes[_BOX_BIAS][0] // 4


FAMILY = EfficientDetFamily()
