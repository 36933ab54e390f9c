"""Weights of published checkpoints under our names.

Ours are those of google/automl's name-based checkpoints, so those need no translation. NVIDIA's object-based ones number
their layers; the numbers are turned into names here. Arrays come as a dictionary, read elsewhere.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from object_detection.errors import InputError

AVERAGE_SUFFIX = "/ExponentialMovingAverage"
_OBJECT_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NO_MODEL_TENSOR = re.compile(
    r"global_step|save_counter|_CHECKPOINTABLE_OBJECT_GRAPH|.*/Momentum|optimizer/.*|save_counter/.*|.*/\.OPTIMIZER_SLOT/.*"
    r"|run/.*")  # run/: what only a training that goes on needs


def is_object_based(names: Iterable[str]) -> bool:
    """Whether a checkpoint with these tensor names is a TensorFlow 2 object checkpoint."""
    return _OBJECT_GRAPH in names


def model_arrays(arrays: Mapping[str, np.ndarray], *, averaged: bool = True) -> dict[str, np.ndarray]:
    """The model's tensors of a name-based checkpoint, averaged or raw, without the optimizer's.

    A tensor without an average (a checkpoint that holds one kind only) is taken as it is.
    """
    raw = {name: array for name, array in arrays.items()
           if not name.endswith(AVERAGE_SUFFIX) and not _NO_MODEL_TENSOR.fullmatch(name)}
    if not averaged:
        return raw
    averages = {name.removesuffix(AVERAGE_SUFFIX): array for name, array in arrays.items()
                if name.endswith(AVERAGE_SUFFIX) and not _NO_MODEL_TENSOR.fullmatch(name)}
    return {**raw, **averages}


def check_against(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], *, source: str
) -> None:
    """Raises InputError naming tensors of the model that are missing, unexpected or of another shape."""
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name} is unexpected" for name in arrays if name not in shapes]
    problems += [f"{name} has shape {tuple(arrays[name].shape)}, wanted {tuple(shape)}" for name, shape in shapes.items()
                 if name in arrays and tuple(arrays[name].shape) != tuple(shape)]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(f"{source}: {'; '.join(problems[:5])}{more}")


def from_nvidia(arrays: Mapping[str, np.ndarray], names: Iterable[str], *, min_level: int = 3) -> dict[str, np.ndarray]:
    """The tensors of NVIDIA's object-based checkpoint under our names, without the optimizer's.

    `names` are the model's own in the order of its layers: NVIDIA's backbone counts layers with weights in that order. The
    main values are taken (in its `emackpt-N` they are the averaged ones; its slots are then the raw ones). What has no
    counterpart keeps its own name, for `check_against` to report.
    """
    ours = {theirs: name for name, theirs in _nvidia_names(names, min_level=min_level).items()}
    model = {name.removesuffix(_OBJECT_SUFFIX): array for name, array in arrays.items()
             if not _NO_MODEL_TENSOR.fullmatch(name)}
    return {ours.get(name, name): array for name, array in model.items()}


def _nvidia_names(names: Iterable[str], *, min_level: int) -> dict[str, str]:
    """Our name -> the path in NVIDIA's object graph."""
    backbone_layers = {}
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
    if normalised := re.fullmatch(rf"{kind}-(\d+)-bn-(\d+)", layer):
        return f"{net}/bns/{normalised[1]}/{int(normalised[2]) - min_level}/{role}"
    return f"{net}/conv_ops/{layer.removeprefix(kind + '-')}/{role}"
