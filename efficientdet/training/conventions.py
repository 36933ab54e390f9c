"""Which conventions a training's network follows: where nobody says otherwise, those of the weights that it starts from."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from efficientdet.checkpoints.checkpoint import checkpoint_prefix, prefixes, writing_order
from efficientdet.checkpoints.description import read_description
from efficientdet.checkpoints.weights import read_source, stored_conventions
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.efficientdet.hyperparameter_limits import stated_classes
from efficientdet.families.efficientdet.hyperparameters import Hyperparameters, normalised_aspect_ratios, with_overrides
from efficientdet.families.efficientdet.presets import NVIDIA_CONVENTIONS
from efficientdet.training.start import is_checkpoint
from object_detection.errors import InputError

CONVENTIONS = (*NVIDIA_CONVENTIONS, "anchor_scale", "act_type", "conv_after_downsample")  # no shape of a weight tells them
_OF_BACKBONES = ("normalisations", "act_type")


def with_conventions_of_start(config: TrainingConfig) -> tuple[TrainingConfig, list[str]]:
    """The same with the conventions of the checkpoint that the training goes on from, else of the one that it starts from.

    A hyperparameter that was given keeps its value. The lines say what was taken over, what is kept although the weights
    know it otherwise, and what hparam num_classes is taken for.
    """
    lines = [line for line in [stated_classes(config.hparams.num_classes, config.class_names)] if line]
    prefix, known = _conventions_of_start(config)
    given = {key: value for key, value in known.items() if key in config.hparams_given}
    taken = {key: value for key, value in known.items() if key not in given}
    hparams = with_overrides(config.hparams, taken)
    if changed := _differences(hparams, config.hparams, taken):
        lines.append(f"takes over from {prefix}: {_shown(hparams, changed)}")
    theirs = with_overrides(hparams, given)
    if kept := _differences(theirs, hparams, given):
        lines.append(f"warning: {prefix} was trained with {_shown(theirs, kept)}; --hparams says {_shown(hparams, kept)}")
    return dataclasses.replace(config, hparams=hparams), lines


def _conventions_of_start(config: TrainingConfig) -> tuple[str, dict[str, Any]]:
    """The checkpoint's prefix, and those of its hyperparameters that are conventions."""
    if resumed := _resumed(config):
        return resumed[0], _only(resumed[1], CONVENTIONS)
    if config.pretrained_ckpt:
        source = read_source(config.pretrained_ckpt)
        return source.prefix, _only(source.conventions, CONVENTIONS)
    if is_checkpoint(config.backbone_init):
        source = read_source(config.backbone_init)
        return source.prefix, _only(source.conventions, _OF_BACKBONES)
    return "", {}


def _resumed(config: TrainingConfig) -> tuple[str, dict[str, Any]] | None:
    """Of the newest checkpoint in model_dir whose description can be read; all there are of one training."""
    if config.benchmark or config.resume == "never":
        return None
    if config.resume != "auto":
        found = [checkpoint_prefix(config.resume)]
    else:
        found = sorted(prefixes(Path(config.model_dir), "ckpt-*"), key=writing_order, reverse=True)
    for prefix in map(str, found):
        try:
            description = read_description(prefix)
        except InputError:
            continue  # torn; reading it as a checkpoint will say so
        if description is not None:
            return prefix, stored_conventions(description)
    return None


def _only(hparams: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: hparams[key] for key in keys if key in hparams}


def _differences(one: Hyperparameters, other: Hyperparameters, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if _value(one, key) != _value(other, key)]


def _value(hparams: Hyperparameters, key: str) -> Any:
    value = getattr(hparams, key)
    return normalised_aspect_ratios(value) if key == "aspect_ratios" else value


def _shown(hparams: Hyperparameters, keys: Iterable[str]) -> str:
    return ", ".join(f"{key} {getattr(hparams, key)}" for key in keys)
