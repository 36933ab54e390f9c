"""Load weights into a detector: all of a checkpoint, or those that match."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from dataset.class_names import COCO_2017, ClassNames
from efficientdet.checkpoints.checkpoint import Description, checkpoint_prefix, read_bundle
from efficientdet.families.family import Arrays, Family, Shapes
from efficientdet.weights.array_files import is_array_file, read_array_file
from efficientdet.weights.downloads import local_path
from model.detector import named_variables, set_value
from model.weight_arrays import check_against
from program_support.errors import InputError


@dataclass(frozen=True)
class Source:
    """The content of a checkpoint."""

    prefix: str
    arrays: dict[str, np.ndarray]
    description: Description | None

    def conventions(self, family: Family) -> dict[str, Any]:
        """Return the stored or inferred hyperparameters that these weights need."""
        if self.description is not None:
            return family.stored_conventions(self.description.hparams)
        return family.imported_conventions(self.arrays)

    @property
    def class_names(self) -> ClassNames | None:
        """Classes of the training; None if the checkpoint does not name them."""
        return ClassNames.from_categories(self.description.categories) if self.description else None


def read_source(path: str) -> Source:
    """Read a checkpoint: a prefix, one of its files, a folder, a PyTorch or safetensors file, or published weights.

    Raise InputError if there is none, it is damaged, or it cannot be downloaded.
    """
    prefix = checkpoint_prefix(local_path(path))
    if is_array_file(prefix):
        return Source(prefix, read_array_file(prefix), None)
    return Source(prefix, *read_bundle(prefix))


def load_weights(
    network: keras.Model, source: Source, *, family: Family, class_names: ClassNames, averaged: bool = True
) -> None:
    """Load every weight of the network from a checkpoint with the same classes.

    `averaged`: use the moving average if the checkpoint has both. Raise InputError for missing or unexpected weights
    and other shapes.
    """
    variables = named_variables(network)
    arrays = _named_arrays(source, variables, family=family, averaged=averaged)
    rows = _class_rows(source, arrays, class_names, family=family, shapes=_shapes(variables))
    if rows is None:
        raise InputError(
            f"{source.prefix}: its classes differ from the requested ones ({_class_difference(source, class_names)})"
        )
    _assign(variables, family.with_class_rows(arrays, rows, _shapes(variables)), source=source)


def load_matching_weights(
    network: keras.Model,
    source: Source,
    *,
    family: Family,
    class_names: ClassNames,
    aliases: Sequence[str] = (),
) -> list[str]:
    """Load pretrained weights; return lines for the log.

    If the classes differ, the class predictor keeps its initial values for classes that the checkpoint does not name,
    and all of its weights if it names none of them. Names are compared without case and surrounding spaces.
    aliases: "NAME IN THE CHECKPOINT:NAME IN THE DATA" of classes.

    Raise InputError if any other weight is missing, unexpected or of another shape, or if an alias names no class.
    """
    variables = named_variables(network)
    arrays = _named_arrays(source, variables, family=family)
    if _class_rows(source, arrays, class_names, family=family, shapes=_shapes(variables)) is not None:
        load_weights(network, source, family=family, class_names=class_names)
        return [f"all {len(variables)} weights from {source.prefix}"]
    named = _rows_by_name(source, arrays, family=family, shapes=_shapes(variables))
    for alias in aliases:
        _add_alias(named, alias, class_names, source=source)
    rows = [named.get(_folded(name)) for name in class_names.names]
    kept = [name for name, row in zip(class_names.names, rows, strict=True) if row is not None]
    reinitialized = [name for name in variables if family.is_class_predictor(name)]
    initial = {name: np.asarray(variable.value) for name, variable in variables.items()}
    chosen = family.with_class_rows(arrays, rows, _shapes(variables), defaults=initial)
    if kept and all(chosen[name].shape == initial[name].shape for name in reinitialized if name in chosen):
        _assign(variables, chosen, source=source)
        return [
            f"{len(variables)} weights from {source.prefix}",
            f"class predictor: kept {len(kept)} of {len(rows)} class rows ({_some(tuple(kept))}), "
            "the others are reinitialized",
        ]
    matching = {name: variable for name, variable in variables.items() if name not in reinitialized}
    _assign(
        matching, {name: array for name, array in arrays.items() if not family.is_class_predictor(name)}, source=source
    )
    layers = ", ".join(dict.fromkeys(name.rsplit("/", 1)[0] for name in reinitialized))
    return [
        f"{len(matching)} weights from {source.prefix}",
        f"{layers} starts from scratch: {_class_difference(source, class_names)}",
    ]


def load_backbone(network: keras.Model, source: Source, *, family: Family) -> list[str]:
    """Load the backbone from the checkpoint of a detector or classifier; return lines for the log.

    Raise InputError if a weight is missing or of another shape, or if the network has no backbone.
    """
    every = named_variables(network)
    variables = {name: variable for name, variable in every.items() if family.is_backbone(name)}
    if not variables:
        raise InputError(
            f"{source.prefix}: the network has no backbone weights to load; its first weights are {_some(tuple(every))}"
        )
    arrays = _named_arrays(source, variables, family=family)
    _assign(variables, {name: array for name, array in arrays.items() if name in variables}, source=source)
    return [f"{len(variables)} backbone weights from {source.prefix}"]


def _named_arrays(
    source: Source, variables: dict[str, keras.Variable], *, family: Family, averaged: bool = True
) -> dict[str, np.ndarray]:
    """Rename the checkpoint's arrays. Raise InputError if a third-party file has no weight of this network."""
    arrays = family.named_arrays(source.arrays, variables, averaged=averaged)
    if is_array_file(source.prefix) and not any(name in variables for name in arrays):
        raise InputError(
            f"{source.prefix}: has the arrays {_some(tuple(source.arrays))}, none of which is a weight of this "
            f"network of the family {family.name}; expected {_some(tuple(variables))}"
        )
    return arrays


def _assign(variables: dict[str, keras.Variable], arrays: dict[str, np.ndarray], *, source: Source) -> None:
    check_against(arrays, _shapes(variables), source=source.prefix)
    for name, variable in variables.items():
        set_value(variable, arrays[name])


def _shapes(variables: dict[str, keras.Variable]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(variable.shape) for name, variable in variables.items()}


def _class_rows(source: Source, arrays, class_names: ClassNames, *, family: Family, shapes) -> list[int] | None:
    """Return the row in the checkpoint's predictor of each class, by name; None if the class sets differ."""
    count = family.count_classes(arrays, shapes)
    if (theirs := source.class_names) is not None:
        if not theirs.has_names_of(class_names):
            return None
        if count in (None, len(theirs)):
            return [theirs.names.index(name) for name in class_names.names]
        return list(range(count))  # `check_against` reports the error
    if count in (None, len(class_names)):
        return list(range(len(class_names)))  # without names: assumed to be the same classes
    if count in family.coco_class_rows and class_names == COCO_2017:
        return [family.coco_class_rows[count] + category_id - 1 for category_id in class_names.category_ids]
    return None


def _rows_by_name(source: Source, arrays: Arrays, *, family: Family, shapes: Shapes) -> dict[str, int]:
    """Return the row in the checkpoint's class predictor of each class it names, or of those of COCO."""
    count = family.count_classes(arrays, shapes)
    if (theirs := source.class_names) is not None:
        return {_folded(name): row for row, name in enumerate(theirs.names)} if count in (None, len(theirs)) else {}
    if count is None or count not in family.coco_class_rows:
        return {}
    first = family.coco_class_rows[count]
    return {
        _folded(name): first + number - 1 for number, name in zip(COCO_2017.category_ids, COCO_2017.names, strict=True)
    }


def _add_alias(named: dict[str, int], alias: str, class_names: ClassNames, *, source: Source) -> None:
    """Add the name in the data of a class of the checkpoint to its rows by name."""
    theirs, _, ours = map(_folded, alias.rpartition(":"))
    if theirs not in named or ours not in map(_folded, class_names.names):
        raise InputError(
            f"--class_aliases={alias}: expected NAME:NAME, first a class of {source.prefix} "
            f"({_some(source.class_names.names) if source.class_names else 'which names none'}), then one of the data "
            f"({_some(class_names.names)})"
        )
    named[ours] = named[theirs]


def _folded(name: str) -> str:
    return name.strip().casefold()


def _class_difference(source: Source, class_names: ClassNames) -> str:
    if source.class_names is None:
        return f"the checkpoint does not name its classes, and their number is not {len(class_names)}"
    theirs, ours = set(source.class_names.names), set(class_names.names)
    return (
        f"the checkpoint has {len(theirs)} classes ({_some(source.class_names.names)}), "
        f"the data {len(ours)} ({_some(class_names.names)})"
    )


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
