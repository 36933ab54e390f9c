"""Which families there are: the folders beside this file, and what installed packages offer. The program knows no other way.

The modules of families are imported by name when they are asked for, as hyperparameters find their family here.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from efficientdet import families as folder
from program_support.errors import InputError, nearest_name

if TYPE_CHECKING:
    from model.detector import Detector

ENTRY_POINTS = "efficientdet.families"
DEFAULT_MODEL = "efficientdet-d0"  # as in the references


@cache
def families() -> tuple:
    """Every `Family`, ours first, by name."""
    found = [importlib.import_module(f"{folder.__name__}.{module.name}.family").FAMILY
             for module in sorted(pkgutil.iter_modules(folder.__path__)) if module.ispkg]
    return (*found, *(entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS))))


def model_names() -> tuple[str, ...]:
    """What --model_name may be."""
    return tuple(name for family in families() for name in family.presets)


def family_of(model_name: str) -> Any:
    """The `Family` that has a model of this name; raises InputError with the valid names."""
    for family in families():
        if model_name in family.presets:
            return family
    nearest = nearest_name(model_name, model_names())
    raise InputError(f"--model_name={model_name}: expected one of {', '.join(model_names())}"
                     + (f"; the nearest is {nearest}" if nearest else ""))


def hyperparameters_of(model_name: str, overrides: Mapping[str, Any]) -> Any:
    """The published `Hyperparameters` of a model with flat overrides such as {"nms_configs.method": "hard"} on top."""
    family = family_of(model_name)
    published = family.hyperparameters(model_name=model_name, **family.presets[model_name])
    stored = {key: value for key, value in overrides.items() if key != "model_name"}  # a checkpoint's hold it too
    return published.overridden(stored)


def build_detector(hparams, *, num_classes: int, precision: str = "float32",
                   backbone_weights: str | None = None) -> "Detector":
    """See `Family.build`, of the family of these `Hyperparameters`."""
    return hparams.family.build(hparams, num_classes=num_classes, precision=precision, backbone_weights=backbone_weights)
