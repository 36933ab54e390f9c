"""Checkpoints: TensorFlow bundles of named arrays, with what they mean as JSON beside them.

A bundle holds `<name>` for every weight of the model, `<name>/ExponentialMovingAverage`, `<name>/Momentum` and
`global_step` as the published TensorFlow checkpoints do, so one reader serves both.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from object_detection.errors import InputError

DESCRIPTION_SUFFIX = ".json"
BUNDLE_SUFFIXES = (".data-00000-of-00001", ".index")  # in the order in which they may appear
_BUNDLE_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a bundle's numbers mean; written as JSON beside it and inside every exported model."""

    model_name: str
    hparams: dict[str, Any]
    categories: list[dict]  # COCO's list of id and name
    weights: str  # "raw", "averaged", or "raw and averaged"
    global_step: int = 0
    steps_per_epoch: int = 0
    run: dict[str, Any] = field(default_factory=dict)  # where a training stood: see training_state.Standing

    def write(self, path: str | Path) -> None:
        """Write as JSON; the file appears whole or not at all."""
        path = Path(path)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")
        flush_to_disk(unfinished)
        unfinished.replace(path)


def read_description(prefix: str) -> Description | None:
    """What stands beside a bundle; None where nothing does (a checkpoint of another tool)."""
    path = Path(prefix + DESCRIPTION_SUFFIX)
    if not path.exists():
        return None
    try:
        return Description(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: is no description of a checkpoint ({error})") from error


def checkpoint_prefix(path: str | Path) -> str:
    """The bundle that a prefix, one of its files, or a folder stands for.

    Of a folder it is the latest: the one its `checkpoint` file names, else the one last written. Raises InputError,
    saying what is there, where there is none. Needs no TensorFlow.
    """
    path = Path(_BUNDLE_FILE.sub("", str(path)))
    if Path(f"{path}.index").exists():
        return str(path)
    if not path.is_dir():
        raise InputError(f"{path}: there is no checkpoint of that name (no {path}.index) and no folder")
    if named := _named_by_state_file(path):
        return named
    found = sorted(path.glob("*.index"), key=lambda file: file.stat().st_mtime)
    if not found:
        inside = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
        raise InputError(f"{path}: no checkpoint in this folder; it holds {inside}")
    return str(found[-1])[: -len(".index")]


def _named_by_state_file(folder: Path) -> str | None:
    state = folder / "checkpoint"
    if not state.is_file():
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', state.read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        return None
    prefix = folder / Path(match[1]).name  # the folder may have been moved since
    return str(prefix) if Path(f"{prefix}.index").exists() else None


def read_arrays(prefix: str) -> dict[str, np.ndarray]:
    """All arrays of a bundle by name. Raises InputError where it cannot be read."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, ValueError, IndexError) as error:  # IndexError: the data file is cut short
        raise InputError(f"{prefix}: cannot be read as a checkpoint ({str(error).splitlines()[0]})") from error


def write_arrays(
    prefix: str, arrays: Mapping[str, np.ndarray], description: Description, *, newest: bool = True
) -> None:
    """Write a bundle and its description, flushed to disk; each file appears under its name when whole, the index last.

    `newest`: the folder's `checkpoint` file then names it. Raises InputError where the disk is full; what stood there
    before is then untouched.
    """
    import tensorflow as tf

    target = Path(prefix)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        tf.raw_ops.SaveV2(prefix=str(unfinished), tensor_names=list(arrays), shape_and_slices=[""] * len(arrays),
                          tensors=[tf.convert_to_tensor(array) for array in arrays.values()])
        for suffix in BUNDLE_SUFFIXES:
            flush_to_disk(f"{unfinished}{suffix}")
        description.write(f"{prefix}{DESCRIPTION_SUFFIX}")
        for suffix in BUNDLE_SUFFIXES:
            os.replace(f"{unfinished}{suffix}", f"{prefix}{suffix}")
        flush_to_disk(target.parent)
        if newest:
            _name_newest(target)
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"{prefix}: cannot be written ({_why(error)}); the checkpoints before it are whole") from error
    finally:
        for leftover in target.parent.glob(f"{unfinished.name}.*"):
            leftover.unlink()


def _name_newest(target: Path) -> None:
    """Write the folder's `checkpoint` file, which says to TensorFlow's tools which bundle is the newest."""
    unfinished = target.with_name(f".checkpoint.{os.getpid()}")
    unfinished.write_text(f'model_checkpoint_path: "{target.name}"\n', encoding="utf-8")
    unfinished.replace(target.with_name("checkpoint"))


def flush_to_disk(path: str | Path) -> None:
    """Return when a file, or the names in a folder, would outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "no space left on device" if "No space left" in str(error) else str(error).splitlines()[0]
