"""Checks of flags that name checkpoints or published weights."""

from pathlib import Path

from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.configuration.flag_paths import typed_name
from efficientdet.families.published_files import published_files
from efficientdet.weights.downloads import local_path
from program_support.errors import InputError, nearest_name


def existing_checkpoint(path: str | None, flag: str) -> str | None:
    """Return the prefix of the checkpoint at a path, or None if no path was given.

    A name of published weights is downloaded if it is not in the cache.

    Raises:
        InputError: there is none.
    """
    if not path:
        return None
    try:
        return checkpoint_prefix(local_path(path))
    except InputError as error:
        nearest = nearest_name(path, published_files())
        hint = f"; the nearest name of published weights is {nearest}" if nearest and nearest != path else ""
        raise InputError(f"--{typed_name(flag)}={error}{hint}") from error


def existing_backbone(path: str | None) -> str | None:
    """Return the value of --backbone_init; for a SavedModel the checkpoint of its variables.

    Raises:
        InputError: it is neither `imagenet` nor an existing file.
    """
    from efficientdet.configuration.training_config import PRETRAINED_BACKBONE

    if path and Path(path, "saved_model.pb").is_file():
        path = str(Path(path, "variables", "variables"))
    if path and path != PRETRAINED_BACKBONE:
        existing_checkpoint(path, "backbone_init")
    return path or None
