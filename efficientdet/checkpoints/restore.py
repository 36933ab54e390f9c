"""Read checkpoints of any kind: load their weights into a network, or restore a detector.

--hparams overrides the hyperparameters of a restored detector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from dataset.class_names import COCO_2017, ClassNames
from dataset.files.untrusted_values import error_context
from efficientdet.checkpoints.checkpoint import Description, checkpoint_prefix, read_bundle
from efficientdet.checkpoints.checkpoint_classes import (
    StatedClasses,
    assumed_classes,
    check_fit,
    class_note,
    classes_beside,
    rows_are_cocos,
    rows_of_classes,
    some,
)
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.families.family import Family
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes, with_overrides
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.weights.downloads import local_path
from efficientdet.weights.readers import reader_of, stated_architecture
from model.detection_model import DetectionModel, named_variables, set_value
from model.weight_arrays import check_against
from program_support.errors import InputError

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


@dataclass(frozen=True)
class Source:
    """The content of a checkpoint. `stated`: classes of one without a description, named elsewhere."""

    prefix: str
    arrays: dict[str, np.ndarray]
    description: Description | None
    stated: StatedClasses | None = None

    def conventions(self, family: Family, given: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return the stored or inferred hyperparameters that these weights need; `given`: those that the user set."""
        if self.description is not None:
            return self.description.hparams
        with error_context(f"{self.prefix}:"):
            return family.imported_conventions(self.arrays, stated=stated_architecture(self.prefix), given=given)

    def fixed_settings(self, hparams: Hyperparameters, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters with which these weights have their meaning, such as anchors and normalization.

        Those that a third-party checkpoint neither states nor shows are the published ones of the model, or left out if
        fine-tuning may change them.
        """
        family, published = hparams.family, hyperparameters_of(hparams.model_name, {})
        shown = self.conventions(family, given)
        return {
            key: shown.get(key, getattr(published, key))
            for key in family.conventions
            if key in shown or key not in family.adaptable_conventions
        }

    @property
    def class_names(self) -> ClassNames | None:
        """Classes of the training; None if neither the checkpoint nor a file beside it names them."""
        if self.description is not None:
            return self.description.class_names
        return self.stated.names if self.stated else None


def read_source(path: str, *, class_names: ClassNames | None = None) -> Source:
    """Read a checkpoint: a prefix, one of its files, a folder, a PyTorch or safetensors file, or published weights.

    class_names: classes of a checkpoint that does not name them. Default: those of a file beside it, if there is one.

    Raises:
        InputError: there is none, it is damaged, it cannot be downloaded, or it has other classes.
    """
    prefix = checkpoint_prefix(local_path(path))
    arrays, description = (reader.read(prefix), None) if (reader := reader_of(prefix)) else read_bundle(prefix)
    stated = StatedClasses(class_names, "--class_names") if class_names else None
    if description is None:
        return Source(prefix, arrays, None, stated or classes_beside(prefix))
    source = Source(prefix, arrays, description)
    if stated and source.class_names and not source.class_names.has_names_of(stated.names):
        raise InputError(
            f"--class_names: names {some(stated.names.names)}, but {prefix} is a checkpoint of "
            f"{some(source.class_names.names)}"
        )
    return source


def class_rows_in(network: keras.Model, source: Source, *, family: Family) -> int | None:
    """Return the number of rows of a checkpoint's class predictor; None if unknown. The network's may be another."""
    variables = named_variables(network)
    return family.count_classes(_named_arrays(source, variables, family=family), _shapes(variables))


def load_weights(
    network: keras.Model, source: Source, *, family: Family, class_names: ClassNames, averaged: bool = True
) -> None:
    """Load every weight of the network from a checkpoint with the same classes.

    `averaged`: use the moving average if the checkpoint has both.

    Raises:
        InputError: for missing or unexpected weights and other shapes.
    """
    variables = named_variables(network)
    arrays = _named_arrays(source, variables, family=family, averaged=averaged)
    count = family.count_classes(arrays, _shapes(variables))
    if source.stated:
        check_fit(source.prefix, source.stated, count, family)
    rows = _class_rows(source, class_names, count=count, family=family)
    if rows is None:
        raise InputError(
            f"{source.prefix}: its classes differ from the requested ones "
            f"({_class_difference(source, class_names, count=count)})"
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

    If the classes differ, the class predictor keeps its initial values for classes that the checkpoint does not name;
    case and surrounding spaces of names do not matter. Without names, as many rows as there are classes in the data are
    taken as their rows, unless they are those of COCO. aliases: "NAME IN THE CHECKPOINT:NAME IN THE DATA" of classes.

    Raises:
        InputError: any other weight is missing, unexpected or of another shape, or if an alias names no class.
    """
    variables = named_variables(network)
    arrays = _named_arrays(source, variables, family=family)
    count = family.count_classes(arrays, _shapes(variables))
    source, ignored = _fitting(source, count, family=family)
    rows = _class_rows(source, class_names, count=count, family=family)
    if (
        source.class_names is None
        and class_names != COCO_2017
        and (rows_are_cocos(count, family) or count not in (None, len(class_names)))
    ):
        rows = None
    if rows is not None:
        load_weights(network, source, family=family, class_names=class_names)
        line = f"all {len(variables)} weights from {source.prefix}"
        return [*ignored, line, *_assumption(source, class_names, count)]
    named = {_folded(name): row for name, row in _rows_by_name(source, count=count, family=family).items()}
    for alias in aliases:
        _add_alias(named, alias, class_names, source=source)
    rows_or_none = [named.get(_folded(name)) for name in class_names.names]
    shared = [name for name, row in zip(class_names.names, rows_or_none, strict=True) if row is not None]
    hint = "; --class_aliases=OLD:NEW keeps a renamed one" if source.description and len(named) > len(shared) else ""
    reinitialized = [name for name in variables if family.is_class_predictor(name)]
    initial = {name: np.asarray(variable.value) for name, variable in variables.items()}
    chosen = family.with_class_rows(arrays, rows_or_none, _shapes(variables), defaults=initial)
    if shared and all(chosen[name].shape == initial[name].shape for name in reinitialized if name in chosen):
        _assign(variables, chosen, source=source)
        return [
            *ignored,
            f"{len(variables)} weights from {source.prefix}",
            f"class predictor: kept {len(shared)} of {len(rows_or_none)} class rows ({some(tuple(shared))}), "
            f"the others are reinitialized{hint}",
        ]
    matching = {name: variable for name, variable in variables.items() if name not in reinitialized}
    others = {name: array for name, array in arrays.items() if not family.is_class_predictor(name)}
    _assign(matching, others, source=source)
    layers = ", ".join(dict.fromkeys(name.rsplit("/", 1)[0] for name in reinitialized))
    return [
        *ignored,
        f"{len(matching)} weights from {source.prefix}",
        f"{layers} starts from scratch: {_class_difference(source, class_names, count=count)}{hint}",
    ]


def load_backbone(network: keras.Model, source: Source, *, family: Family) -> list[str]:
    """Load the backbone from the checkpoint of a detector or classifier; return lines for the log.

    Raises:
        InputError: a weight is missing or of another shape, or if the network has no backbone.
    """
    every = named_variables(network)
    variables = {name: variable for name, variable in every.items() if family.is_backbone(name)}
    if not variables:
        raise InputError(
            f"{source.prefix}: the network has no backbone weights to load; its first weights are {some(tuple(every))}"
        )
    arrays = _named_arrays(source, variables, family=family)
    _assign(variables, {name: array for name, array in arrays.items() if name in variables}, source=source)
    return [f"{len(variables)} backbone weights from {source.prefix}"]


def _named_arrays(
    source: Source, variables: dict[str, keras.Variable], *, family: Family, averaged: bool = True
) -> dict[str, np.ndarray]:
    """Rename the checkpoint's arrays.

    Raises:
        InputError: a third-party file has no weight of this network, or only those of its backbone.
    """
    with error_context(f"{source.prefix}:"):
        arrays = family.named_arrays(source.arrays, variables, averaged=averaged)
    loaded = [name for name in arrays if name in variables]
    if loaded and all(map(family.is_backbone, loaded)) and not all(map(family.is_backbone, variables)):
        raise InputError(f"{source.prefix}: has a backbone without a detector; expected a detector, or --backbone_init")
    if not loaded and reader_of(source.prefix):
        raise InputError(
            f"{source.prefix}: has the arrays {some(tuple(source.arrays))}, none of which is a weight of this "
            f"network of the family {family.name}; expected {some(tuple(variables))}"
        )
    return arrays


def _assign(variables: dict[str, keras.Variable], arrays: dict[str, np.ndarray], *, source: Source) -> None:
    of_model = f" (of {source.description.model_name})" if source.description else ""
    check_against(arrays, _shapes(variables), source=f"{source.prefix}{of_model}")
    for name, variable in variables.items():
        set_value(variable, arrays[name])


def _shapes(variables: dict[str, keras.Variable]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(variable.shape) for name, variable in variables.items()}


def _class_rows(source: Source, class_names: ClassNames, *, count: int | None, family: Family) -> list[int] | None:
    """Return the row in the checkpoint's predictor of each class, by name; None if the class sets differ."""
    theirs = source.class_names
    if theirs is None:  # no names: assumed to be the same classes
        is_possible = class_names == COCO_2017 or not rows_are_cocos(count, family) or count == len(class_names)
        return rows_of_classes(class_names, count, family) if is_possible else None
    if not theirs.has_names_of(class_names):
        return None
    row_of = _rows_by_name(source, count=count, family=family)
    if not row_of:
        return list(range(len(class_names)))  # `check_against` reports the error
    return [row_of[name] for name in class_names.names]


def _rows_by_name(source: Source, *, count: int | None, family: Family) -> dict[str, int]:
    """Return the row in the checkpoint's class predictor of each class it names, or of those of COCO."""
    names = source.class_names
    if source.description is not None:
        rows = list(range(len(names or ()))) if count in (None, len(names or ())) else None
    elif names is None and (count is None or not rows_are_cocos(count, family)):
        rows = None
    else:
        names = names or COCO_2017
        rows = rows_of_classes(names, count, family)
    return dict(zip(names.names, rows, strict=True)) if names and rows else {}


def _fitting(source: Source, count: int | None, *, family: Family) -> tuple[Source, list[str]]:
    """Return the source without names that a file beside it states for another number of rows, and a line on these."""
    if source.stated is None:
        return source, []
    try:
        check_fit(source.prefix, source.stated, count, family)
    except InputError as error:
        return replace(source, stated=None), [f"warning: {error}; the file is ignored"]
    return source, []


def _assumption(source: Source, class_names: ClassNames, count: int | None) -> list[str]:
    """Return a warning if class rows without names are used for the classes of the data."""
    if source.class_names is not None or count is None or class_names == COCO_2017:
        return []
    return [
        f"warning: {source.prefix} does not name its classes; its {count} class rows are taken as those of the data in "
        f"the order of their ids ({some(class_names.names)}). If they are of other classes, put a classes.json with "
        "their names beside it: then rows are kept by name, and the others are reinitialized"
    ]


def _add_alias(named: dict[str, int], alias: str, class_names: ClassNames, *, source: Source) -> None:
    """Add the name in the data of a class of the checkpoint to its rows by name."""
    theirs, _, ours = map(_folded, alias.rpartition(":"))
    if theirs not in named or ours not in map(_folded, class_names.names):
        raise InputError(
            f"--class_aliases={alias}: expected NAME:NAME, first a class of {source.prefix} "
            f"({some(source.class_names.names) if source.class_names else 'which names none'}), then one of the data "
            f"({some(class_names.names)})"
        )
    named[ours] = named[theirs]


def _folded(name: str) -> str:
    return name.strip().casefold()


def _class_difference(source: Source, class_names: ClassNames, *, count: int | None) -> str:
    ours = f"the data {len(class_names)} ({some(class_names.names)})"
    if source.class_names is None:
        return f"the checkpoint has {'no' if count is None else count} class rows and does not name them, {ours}"
    return f"the checkpoint has {len(source.class_names)} classes ({some(source.class_names.names)}), {ours}"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """A detector with weights, and its hyperparameters, classes and description. `notes`: lines for the user."""

    detector: DetectionModel
    hparams: Hyperparameters
    class_names: ClassNames
    description: Description
    notes: tuple[str, ...] = ()

    @property
    def resize(self) -> "ResizeRule":
        """Rule by which images are resized to the network's input."""
        return self.hparams.family.resize_rule(self.hparams)


def restore_detector(config: ModelConfig, *, precision: str = "float32") -> Restored:
    """Read a checkpoint of any kind into a detector.

    Model and hyperparameters are those of the checkpoint if it states them, else those of `model_name`, changed by
    `overrides`. Classes are `class_names`, which must have the names in the checkpoint (category ids may differ), else
    the checkpoint's. Those of a checkpoint that names none are COCO's if it has as many rows, else numbered.

    Raises:
        InputError: the checkpoint and the configuration disagree.
    """
    assert config.ckpt_path is not None  # otherwise there is nothing to restore
    source = read_source(config.ckpt_path, class_names=config.checkpoint_classes)
    model_name, class_names = config.model_name, config.class_names
    stated = source.description.model_name if source.description else None
    if config.model_name_given and stated not in (None, model_name):
        raise InputError(f"{source.prefix}: is a checkpoint of {stated}, not of --model_name={model_name}")
    if source.class_names is not None and class_names is not None and not source.class_names.has_names_of(class_names):
        raise InputError(
            f"{source.prefix}: its classes are {', '.join(source.class_names.names[:6])}; those of the data are "
            f"{', '.join(class_names.names[:6])}"
        )
    family = hyperparameters_of(stated or model_name, {}).family
    hparams = with_overrides(
        hyperparameters_of(stated or model_name, source.conventions(family, config.overrides)), config.overrides
    )
    with keras.StatelessScope():  # variables are initialized at its end, see `set_value`
        detector, names, notes = _built(hparams, source, config, precision=precision)
        load_weights(detector.network, source, family=family, class_names=names, averaged=config.averaged)
    description = Description(
        model_name=hparams.model_name,
        hparams=hparams.to_dict(),
        categories=names.to_categories(),
        weights="averaged" if config.averaged else "raw",
        global_step=source.description.global_step if source.description else 0,
        score_thresholds=source.description.score_thresholds if source.description else {},
    )
    return Restored(detector=detector, hparams=hparams, class_names=names, description=description, notes=notes)


def _built(
    hparams: Hyperparameters, source: Source, config: ModelConfig, *, precision: str
) -> tuple[DetectionModel, ClassNames, tuple[str, ...]]:
    """Return a detector for the classes of a checkpoint, these classes, and lines on their origin."""
    names, num_classes = config.class_names or source.class_names, config.overrides.get("num_classes")
    owner = "the data" if config.class_names else "the checkpoint"
    if names is not None:
        stated_classes(num_classes, names, owner=owner)
    detector = build_detector(hparams, num_classes=len(names or COCO_2017), precision=precision)
    if source.description is not None:
        assert names is not None  # a description names them
        return detector, names, ()
    count = class_rows_in(detector.network, source, family=hparams.family)
    if names is None:
        names = assumed_classes(count, hparams.family)
        stated_classes(num_classes, names, owner=owner)
        if len(names) != len(COCO_2017):
            detector = build_detector(hparams, num_classes=len(names), precision=precision)
    of_data = config.class_names is not None
    return detector, names, (class_note(source.prefix, source.stated, names=names, of_data=of_data, count=count),)
