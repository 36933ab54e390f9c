"""Conventions of a network in training: by default the conventions of the weights that it starts from."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from efficientdet.checkpoints.checkpoint import checkpoint_prefix, prefixes, writing_order
from efficientdet.checkpoints.description import read_description
from efficientdet.checkpoints.pretrained_weights import read_source
from efficientdet.configuration.training_config import PRETRAINED_BACKBONE, TrainingConfig
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes, with_overrides
from efficientdet.training.start import is_checkpoint
from program_support.errors import InputError


def with_conventions_of_start(config: TrainingConfig) -> tuple[TrainingConfig, list[str]]:
    """Return the configuration with the conventions of the checkpoint that the training resumes or starts from.

    A hyperparameter that the user set keeps its value. The returned lines report which values were taken from the
    checkpoint, which are kept although the checkpoint has others, and how hparam num_classes is interpreted.
    --backbone_init=imagenet is replaced by the file that the family uses for it.
    """
    config = _with_named_backbone(config)
    lines = [line for line in [stated_classes(config.hparams.num_classes, config.class_names)] if line]
    prefix, known = _conventions_of_start(config)
    given = {key: value for key, value in known.items() if key in config.hparams_given}
    taken = {key: value for key, value in known.items() if key not in given}
    hparams = with_overrides(config.hparams, taken)
    if changed := _differences(hparams, config.hparams, taken):
        lines.append(f"hyperparameters taken from {prefix}: {_shown(hparams, changed)}")
    theirs = with_overrides(hparams, given)
    if kept := _differences(theirs, hparams, given):
        lines.append(
            f"warning: {prefix} was trained with {_shown(theirs, kept)}; --hparams sets {_shown(hparams, kept)}"
        )
    return dataclasses.replace(config, hparams=hparams), lines


def _with_named_backbone(config: TrainingConfig) -> TrainingConfig:
    if config.backbone_init == PRETRAINED_BACKBONE and (
        file := config.hparams.family.imagenet_backbone(config.hparams)
    ):
        return dataclasses.replace(config, backbone_init=file)
    return config


def _conventions_of_start(config: TrainingConfig) -> tuple[str, dict[str, Any]]:
    """Return the checkpoint's prefix and its hyperparameters that are conventions."""
    family = config.hparams.family
    if resumed := _resumed(config):
        return resumed[0], _only(family.stored_conventions(resumed[1]), family.conventions)
    if config.pretrained_ckpt:
        source = read_source(config.pretrained_ckpt)
        return source.prefix, _only(source.conventions(family), family.conventions)
    if is_checkpoint(config.backbone_init):
        source = read_source(config.backbone_init)
        return source.prefix, _only(source.conventions(family), family.backbone_conventions)
    return "", {}


def _resumed(config: TrainingConfig) -> tuple[str, dict[str, Any]] | None:
    """Return prefix and hyperparameters of the newest checkpoint in model_dir with a readable description.

    All checkpoints in model_dir are of one training.
    """
    if config.benchmark or config.resume == "never":
        return None
    if config.resume != "auto":
        found = [Path(checkpoint_prefix(config.resume))]
    else:
        found = sorted(prefixes(Path(config.model_dir), "ckpt-*"), key=writing_order, reverse=True)
    for prefix in map(str, found):
        try:
            description = read_description(prefix)
        except InputError:
            continue  # damaged; reading it as a checkpoint reports the error
        if description is not None:
            return prefix, description.hparams
    return None


def _only(hparams: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: hparams[key] for key in keys if key in hparams}


def _differences(one: Hyperparameters, other: Hyperparameters, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if one.comparable(key) != other.comparable(key)]


def _shown(hparams: Hyperparameters, keys: Iterable[str]) -> str:
    return ", ".join(f"{key} {getattr(hparams, key)}" for key in keys)
