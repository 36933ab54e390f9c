"""Registry of the families: the folders beside this file, and plugins.

Modules of families are imported by name on demand, because hyperparameters look up their family here.
"""

import importlib
import os
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from program_support.errors import InputError, nearest_name
from program_support.plugins import load_plugins

if TYPE_CHECKING:
    from model.detection_model import DetectionModel

PLUGINS = "efficientdet.families"
DEFAULT_MODEL = "efficientdet-d0"  # the references' default


@cache
def families() -> tuple:
    """Return every `Family`: those of this package sorted by name, then plugins."""
    built_in = [
        importlib.import_module(f"{__package__}.{module.name}.family").FAMILY
        for module in sorted(pkgutil.iter_modules([os.path.dirname(__file__)]))
        if module.ispkg
    ]
    return (*built_in, *load_plugins(PLUGINS))


def model_names() -> tuple[str, ...]:
    """Return the valid values of --model_name."""
    return tuple(name for family in families() for name in family.presets)


def family_of(model_name: str) -> Any:
    """Return the `Family` of a model.

    Raises:
        InputError: with the valid names if there is none.
    """
    for family in families():
        if model_name in family.presets:
            return family
    nearest = nearest_name(model_name, model_names())
    raise InputError(
        f"--model_name={model_name}: expected one of {', '.join(model_names())}"
        + (f"; the nearest is {nearest}" if nearest else "")
    )


def hyperparameters_of(model_name: str, overrides: Mapping[str, Any]) -> Any:
    """Return the published `Hyperparameters` of a model, changed by flat overrides {"nms_configs.method": "hard"}."""
    family = family_of(model_name)
    published = family.hyperparameters(model_name=model_name, **family.presets[model_name])
    # Stored hyperparameters contain the model name.
    return published.overridden({key: value for key, value in overrides.items() if key != "model_name"})


def build_detector(hparams, *, num_classes: int, precision: str = "float32") -> "DetectionModel":
    """Build a detector of the family of these `Hyperparameters`; see `Family.build`."""
    import keras

    from model.detection_model import draw_on_host

    if keras.backend.backend() != "jax":
        return hparams.family.build(hparams, num_classes=num_classes, precision=precision)
    with keras.StatelessScope() as scope:
        detector = hparams.family.build(hparams, num_classes=num_classes, precision=precision)
        draw_on_host(detector.network)
    for variable in detector.network.variables:  # a family may assign weights, which the scope only remembers
        if (value := scope.get_current_value(variable)) is not None:
            variable.assign(value)
    return detector
