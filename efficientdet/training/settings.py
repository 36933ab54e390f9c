"""Settings that are decided when a training starts: conventions (see `Family`), suggestions and batch sizes."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.checkpoints.description import read_description
from efficientdet.checkpoints.restore import read_source
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.data_checks.examination import with_suggestions
from efficientdet.devices.distributed import World
from efficientdet.devices.memory import with_batch_sizes
from efficientdet.devices.runtime import Runtime
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes, with_overrides
from efficientdet.options.train import PRETRAINED_BACKBONE, TrainingConfig
from program_support.errors import InputError

Log = Callable[[str], None]


def settings_at_start(config: TrainingConfig, runtime: Runtime, world: World, *, log: Log) -> TrainingConfig:
    """Return the configuration with all that is decided when a training starts; log what the user did not set.

    In this order: conventions of the checkpoint that a new training starts from, with --suggest the suggestions of the
    data check, conventions of the checkpoint that the training resumes from, and batch sizes.

    Raises:
        InputError: --hparams contradicts a checkpoint, or no object of the records can be used.
    """
    given = config.hparams_given
    config = with_conventions_of_start(config, log=log)
    config = with_suggestions(config, log=log)
    config = with_conventions_of_resumed(config, given=given, log=log)
    return with_batch_sizes(config, runtime, world, log=log)


def with_conventions_of_start(config: TrainingConfig, *, log: Log) -> TrainingConfig:
    """Return the configuration with the conventions of the checkpoint that a new training starts from.

    The data check suggests no other values for them: they are in `hparams_given` of the result.
    --backbone_init=imagenet is replaced by the file that the family uses for it.

    Raises:
        InputError: --hparams has other values, unless --override_checkpoint is set.
    """
    hparams, family, given = config.hparams, config.hparams.family, config.hparams_given
    if config.backbone_init == PRETRAINED_BACKBONE:
        if (file := family.imagenet_backbone(hparams)) is None:
            raise InputError(
                f"--backbone_init={PRETRAINED_BACKBONE}: no backbone is published for {hparams.model_name}"
            )
        config = dataclasses.replace(config, backbone_init=file)
    if line := stated_classes(hparams.num_classes, config.class_names):
        log(line)
    if (path := config.pretrained_ckpt or config.backbone_init) is None:
        return config
    source, values = read_source(path), {key: getattr(hparams, key, None) for key in given}
    if config.pretrained_ckpt:
        known = source.fixed_settings(hparams, values)
    else:
        known = _only(source.conventions(family, values), family.backbone_conventions)
    trained = "was trained with" if source.description else "was trained, as far as its arrays show, with"
    config = _with_conventions(config, known, prefix=source.prefix, given=given, trained=trained, log=log)
    return dataclasses.replace(config, hparams_given=given.union(known))


def with_conventions_of_resumed(config: TrainingConfig, *, given: frozenset[str], log: Log) -> TrainingConfig:
    """Return the configuration with the conventions of the checkpoint that the training resumes from, if there is one.

    `given`: the keys in --hparams; with other values for them than the checkpoint's, as `with_conventions_of_start`.
    """
    if config.benchmark or config.resume == "never":
        return config
    bundles = CheckpointStore(config.model_dir).prefixes()
    if config.resume != "auto":
        bundles = [Path(checkpoint_prefix(config.resume))]
    for prefix in map(str, bundles):
        with contextlib.suppress(InputError):  # damaged; reading it as a checkpoint reports the error
            if description := read_description(prefix):
                known = _only(description.hparams, config.hparams.family.conventions)
                break
    else:
        return config
    return _with_conventions(config, known, prefix=prefix, given=given, trained="was trained with", log=log)


def _with_conventions(
    config: TrainingConfig, known: dict[str, Any], *, prefix: str, given: frozenset[str], trained: str, log: Log
) -> TrainingConfig:
    """Return the configuration with the known conventions, except given ones.

    Raises:
        InputError: given ones differ.
    """
    chosen = {key: value for key, value in known.items() if key in given}
    taken = {key: value for key, value in known.items() if key not in given}
    hparams = with_overrides(config.hparams, taken)
    if changed := _differences(hparams, config.hparams, taken):
        log(f"hyperparameters taken from {prefix}: {_shown(hparams, changed)}")
    of_checkpoint = with_overrides(hparams, chosen)
    if other := _differences(of_checkpoint, hparams, chosen):
        refused = [key for key in other if key not in config.hparams.family.adaptable_conventions]
        if refused and not config.override_checkpoint:
            raise InputError(
                f"{prefix}: {trained} {_shown(of_checkpoint, refused)}; --hparams sets "
                f"{_shown(hparams, refused)}, with which its weights mean something "
                "else: leave this out, or add --override_checkpoint if it is meant"
            )
        log(f"warning: {prefix} {trained} {_shown(of_checkpoint, other)}; --hparams sets {_shown(hparams, other)}")
    return dataclasses.replace(config, hparams=hparams)


def _only(hparams: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: hparams[key] for key in keys if key in hparams}


def _differences(one: Hyperparameters, other: Hyperparameters, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if one.comparable(key) != other.comparable(key)]


def _shown(hparams: Hyperparameters, keys: Iterable[str]) -> str:
    return ", ".join(f"{key} {getattr(hparams, key)}" for key in keys)
