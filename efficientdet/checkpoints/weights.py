"""Weights into a detector: from a checkpoint of ours, of google/automl or of NVIDIA, whole or what of it fits."""

import json
import re
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.checkpoint import Description, checkpoint_prefix, read_whole
from efficientdet.families.efficientdet.presets import NVIDIA_CONVENTIONS
from model.detector import named_variables
from model.import_weights import check_against, from_nvidia, is_object_based, model_arrays
from object_detection.errors import InputError

_COCO_ROWS = (90, 91)  # class rows of the published COCO checkpoints: row = category id - 1, some never used
_CLASS_PREDICTOR = re.compile(r"class_net/class-predict/(pointwise_kernel|kernel|bias)")


@dataclass(frozen=True)
class Source:
    """A checkpoint that has been read."""

    prefix: str
    arrays: dict[str, np.ndarray]
    description: Description | None

    @property
    def conventions(self) -> dict[str, Any]:
        """Hyperparameters without which these weights mean nothing."""
        if self.description is not None:
            return stored_conventions(self.description)
        return dict(NVIDIA_CONVENTIONS) if is_object_based(self.arrays) else {}

    @property
    def class_names(self) -> ClassNames | None:
        """The classes it was trained on, where it names them."""
        return ClassNames.from_categories(self.description.categories) if self.description else None


def stored_conventions(description: Description) -> dict[str, Any]:
    """The hyperparameters beside a checkpoint of ours.

    Those written before `half_pixel_upsampling` was known lack it: where all others are NVIDIA's, so is that one.
    """
    stored = dict(description.hparams)
    others = [key for key in NVIDIA_CONVENTIONS if key != "half_pixel_upsampling"]
    as_json = [json.dumps([hparams.get(key) for key in others]) for hparams in (stored, NVIDIA_CONVENTIONS)]
    if "half_pixel_upsampling" not in stored and as_json[0] == as_json[1]:
        stored["half_pixel_upsampling"] = True
    return stored


def read_source(path: str) -> Source:
    """Read a checkpoint; a prefix, one of its files, or a folder."""
    prefix = checkpoint_prefix(path)
    return Source(prefix, *read_whole(prefix))


def load_weights(network: keras.Model, source: Source, *, class_names: ClassNames, averaged: bool = True) -> None:
    """Every weight of the network from a checkpoint of the same classes.

    Raises InputError naming what is missing, unexpected or of another shape. `averaged`: the moving average where the
    checkpoint holds both.
    """
    variables = named_variables(network)
    arrays = _model_arrays(source, variables, averaged=averaged)
    rows = _class_rows(source, arrays, class_names, num_anchors=_num_anchors(variables))
    if rows is None:
        raise InputError(f"{source.prefix}: its classes are not those asked for ({_class_difference(source, class_names)})")
    arrays = _with_class_rows(arrays, rows, num_anchors=_num_anchors(variables))
    check_against(arrays, {name: variable.shape for name, variable in variables.items()}, source=source.prefix)
    for name, variable in variables.items():
        variable.assign(arrays[name])


def load_what_fits(network: keras.Model, source: Source, *, class_names: ClassNames) -> list[str]:
    """Weights to start a training from: all but the class predictor where the class set differs. Says what it did.

    Raises InputError where anything else is missing, unexpected or of another shape.
    """
    variables = named_variables(network)
    arrays = _model_arrays(source, variables, averaged=True)
    rows = _class_rows(source, arrays, class_names, num_anchors=_num_anchors(variables))
    if rows is not None:
        load_weights(network, source, class_names=class_names)
        return [f"all {len(variables)} weights from {source.prefix}"]
    fitting = {name: array for name, array in arrays.items() if not name.startswith("class_net/class-predict/")}
    wanted = {name: variable for name, variable in variables.items() if not name.startswith("class_net/class-predict/")}
    check_against(fitting, {name: variable.shape for name, variable in wanted.items()}, source=source.prefix)
    for name, variable in wanted.items():
        variable.assign(fitting[name])
    return [f"{len(wanted)} weights from {source.prefix}",
            f"class_net/class-predict starts anew: {_class_difference(source, class_names)}"]


def load_backbone(network: keras.Model, source: Source) -> list[str]:
    """The backbone alone, from a detector's or a classifier's checkpoint. Says what it did.

    Raises InputError where a weight is missing or of another shape, or the network has no backbone to load.
    """
    variables = {name: variable for name, variable in named_variables(network).items() if name.startswith("efficientnet-")}
    if not variables:
        raise InputError(f"{source.prefix}: the network has no weights named efficientnet-.., so nothing can be loaded; its "
                         f"first are {_some(tuple(named_variables(network)))}")
    arrays = {name: array for name, array in _model_arrays(source, variables, averaged=True).items() if name in variables}
    check_against(arrays, {name: variable.shape for name, variable in variables.items()}, source=source.prefix)
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return [f"{len(variables)} backbone weights from {source.prefix}"]


def _model_arrays(source: Source, names, *, averaged: bool) -> dict[str, np.ndarray]:
    if is_object_based(source.arrays):
        return from_nvidia(source.arrays, names)
    return model_arrays(source.arrays, averaged=averaged)


def _num_anchors(variables: dict[str, keras.Variable]) -> int:
    return variables["box_net/box-predict/bias"].shape[0] // 4


def _class_rows(source: Source, arrays, class_names: ClassNames, *, num_anchors: int) -> list[int] | None:
    """For each of our classes the row of the checkpoint's predictor; None where the class sets differ."""
    bias = arrays.get("class_net/class-predict/bias")
    if bias is None or len(bias) % num_anchors:
        return list(range(len(class_names)))  # `check_against` will say what is wrong
    count = len(bias) // num_anchors
    if source.class_names is not None:
        return list(range(count)) if source.class_names == class_names else None
    if count == len(class_names):
        return list(range(count))  # the checkpoint does not name its classes: taken for the same ones
    if count in _COCO_ROWS and class_names == COCO_2017:
        return [category_id - 1 for category_id in class_names.category_ids]
    return None


def _with_class_rows(arrays: dict[str, np.ndarray], rows: list[int], *, num_anchors: int) -> dict[str, np.ndarray]:
    """The same with the predictor's last axis (anchor-major, then class) cut down to these rows."""
    cut = dict(arrays)
    for name, array in arrays.items():
        if _CLASS_PREDICTOR.fullmatch(name) and array.shape[-1] % num_anchors == 0:
            by_class = array.reshape(*array.shape[:-1], num_anchors, -1)
            if max(rows) < by_class.shape[-1]:
                cut[name] = by_class[..., rows].reshape(*array.shape[:-1], -1)
    return cut


def _class_difference(source: Source, class_names: ClassNames) -> str:
    if source.class_names is None:
        return f"the checkpoint does not name its classes and has another number of them than {len(class_names)}"
    theirs, ours = set(source.class_names.names), set(class_names.names)
    return (f"the checkpoint has {len(theirs)} classes ({_some(source.class_names.names)}), "
            f"the data {len(ours)} ({_some(class_names.names)})")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", .." if len(names) > 5 else "")
