"""Checkpoints and published weights that flags name."""

from pathlib import Path

from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.configuration.flag_definitions import typed_name
from efficientdet.configuration.flag_paths import existing_file
from efficientdet.configuration.training_config import PRETRAINED_BACKBONE
from efficientdet.families.published_files import published_files
from efficientdet.weights.downloads import local_path
from program_support.errors import InputError, nearest_name


def existing_checkpoint(path: str | None, flag: str) -> str | None:
    """The prefix of the checkpoint that a path stands for, if one was given; raises InputError where there is none.

    What is no path but the name of published weights is downloaded, unless it was before.
    """
    try:
        return checkpoint_prefix(local_path(path)) if path else None
    except InputError as error:
        nearest = nearest_name(path, published_files())
        hint = f"; the nearest name of published weights is {nearest}" if nearest and nearest != path else ""
        raise InputError(f"--{typed_name(flag)}={error}{hint}") from error


def existing_backbone(path: str | None) -> str | None:
    """Return what --backbone_init names, for the folder of a SavedModel the checkpoint of its variables.

    Raises InputError where it is neither `imagenet` nor there.
    """
    if path and path.endswith(".h5"):
        return existing_file(path, "backbone_init")
    if path and Path(path, "saved_model.pb").is_file():
        path = str(Path(path, "variables", "variables"))
    if path and path != PRETRAINED_BACKBONE:
        existing_checkpoint(path, "backbone_init")
    return path or None
