"""Translation of the weights of published checkpoints to the names of this project.

The names are those of google/automl's name-based checkpoints, which need no translation. NVIDIA's object-based
checkpoints number their layers; this module maps the numbers to names.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from model.weight_arrays import is_of_model

OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
CLASS_PREDICTOR = "class_net/class-predict/"
_WITH_CLASSES = re.compile(r"class_net/class-predict/(pointwise_kernel|kernel|bias)")
_CLASS_BIAS, _BOX_BIAS = "class_net/class-predict/bias", "box_net/box-predict/bias"


def from_nvidia(arrays: Mapping[str, np.ndarray], names: Iterable[str], *, min_level: int = 3) -> dict[str, np.ndarray]:
    """Rename the arrays of NVIDIA's object-based checkpoint and drop those of the optimizer.

    `names` are the names of the model's weights in the order of its layers, in which NVIDIA's backbone numbers them.
    The main values are used: in an `emackpt-N` these are the averaged weights. An array without a counterpart keeps its
    name, and `check_against` reports it. A SavedModel of a classifier is a backbone.
    """
    ours = {theirs: name for name, theirs in _nvidia_names(names, min_level=min_level).items()}
    root = "backbone/" if is_classifier(arrays) else ""
    model = {root + name.removesuffix(OBJECT_SUFFIX): array for name, array in arrays.items() if is_of_model(name)}
    return {ours.get(name, name): array for name, array in model.items()}


def is_classifier(arrays: Mapping[str, np.ndarray]) -> bool:
    """Return whether the object graph's root is an EfficientNet, as in NVIDIA's SavedModels for classification."""
    return any(name.startswith("layer_with_weights-") for name in arrays)


def _nvidia_names(names: Iterable[str], *, min_level: int) -> dict[str, str]:
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
            translated[name] = _nvidia_head_name(name, min_level=min_level)
    return translated


def _nvidia_head_name(name: str, *, min_level: int) -> str:
    net, layer, role = name.split("/")  # class_net/class-1-bn-4/gamma
    kind = net.removesuffix("_net")
    if layer == f"{kind}-predict":
        return f"{net}/{'classes' if kind == 'class' else 'boxes'}/{role}"
    if normalized := re.fullmatch(rf"{kind}-(\d+)-bn-(\d+)", layer):
        return f"{net}/bns/{normalized[1]}/{int(normalized[2]) - min_level}/{role}"
    return f"{net}/conv_ops/{layer.removeprefix(kind + '-')}/{role}"


def count_classes(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the number of classes of the class predictor; None if it does not fit the network's anchors."""
    bias = arrays.get(_CLASS_BIAS)
    if bias is None or len(bias) % anchors_per_cell(shapes):
        return None
    return len(bias) // anchors_per_cell(shapes)


def has_classes(name: str) -> bool:
    """Return whether the last axis of a weight is (anchor, class)."""
    return _WITH_CLASSES.fullmatch(name) is not None


def anchors_per_cell(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of anchors per cell of the network."""
    return shapes[_BOX_BIAS][0] // 4
