"""Arrays of a checkpoint by name: selection of the model's weights, averaged or raw, and checks of names and shapes."""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from program_support.errors import InputError

AVERAGE_SUFFIX = "/ExponentialMovingAverage"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NO_MODEL_TENSOR = re.compile(
    r"global_step|save_counter|_CHECKPOINTABLE_OBJECT_GRAPH|.*/(?:Momentum|Adam|Adam_1)|optimizer/.*|save_counter/.*|.*/\.OPTIMIZER_SLOT/.*"
    r"|run/.*"
)  # run/: state for resuming a training only


def is_object_based(names: Iterable[str]) -> bool:
    """Return whether a checkpoint with these tensor names is a TensorFlow 2 object-based checkpoint."""
    return _OBJECT_GRAPH in names


def is_of_model(name: str) -> bool:
    """Return whether an array of this name is a model weight, and not state of the optimizer or run."""
    return not _NO_MODEL_TENSOR.fullmatch(name)


def model_arrays(arrays: Mapping[str, np.ndarray], *, averaged: bool = True) -> dict[str, np.ndarray]:
    """Return the model's tensors of a name-based checkpoint, averaged or raw, without the optimizer's.

    A tensor without an average (in a checkpoint that contains one kind only) is returned as it is.
    """
    raw = {name: array for name, array in arrays.items() if not name.endswith(AVERAGE_SUFFIX) and is_of_model(name)}
    if not averaged:
        return raw
    averages = {
        name.removesuffix(AVERAGE_SUFFIX): array
        for name, array in arrays.items()
        if name.endswith(AVERAGE_SUFFIX) and is_of_model(name)
    }
    return {**raw, **averages}


def check_against(arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], *, source: str) -> None:
    """Raise InputError with the names of model tensors that are missing, unexpected, of another shape or not finite."""
    problems = [f"{name} is missing" for name in shapes if name not in arrays]
    problems += [f"{name} is unexpected" for name in arrays if name not in shapes]
    problems += [
        f"{name} has shape {tuple(arrays[name].shape)}, expected {tuple(shape)}"
        for name, shape in shapes.items()
        if name in arrays and tuple(arrays[name].shape) != tuple(shape)
    ]
    problems += [
        f"{name} has {count} NaN or infinite values, expected none"
        for name in shapes
        if name in arrays and (count := np.count_nonzero(~np.isfinite(arrays[name])))
    ]
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(f"{source}: {'; '.join(problems[:5])}{more}")
