"""Checkpoints: TensorFlow bundles of named arrays, with what they mean as JSON beside them.

A bundle holds `<name>` for every weight of the model, `<name>/ExponentialMovingAverage`, `<name>/Momentum` and
`global_step` as the published TensorFlow checkpoints do, so one reader serves both.

What is newest in a folder is what was written last: `save_number` in the JSON counts, and survives copying. Checkpoints
without one (of other tools, or from before it existed) come before all that have one; among them the one that the folder's
`checkpoint` file names is the newest, then the one that had seen more images, then the one with the later file.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from efficientdet.checkpoints.bundle_files import (
    BUNDLE_SUFFIXES,
    INDEX_SUFFIX,
    SECOND_FILE_ARRAY,
    link_bundle,
    publish,
)
from efficientdet.checkpoints.description import (
    DESCRIPTION_SUFFIX,
    Description,
    bundle_digest,
    read_description,
)
from efficientdet.weights.array_files import is_array_file
from program_support.atomic_files import flush_to_disk, unfinished_folder, write_text
from program_support.errors import InputError

_BUNDLE_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_LEFT_BY_EARLIER_VERSIONS = re.compile(r"\.(checkpoint|(ema)?ckpt(-\w+)?)(\.json|\.index|\.data-\d{5}-of-\d{5})?\.\d+"
                                       r"(\.(index|data-\S+))?")
_ATTEMPTS = 5  # at reading what another process replaces meanwhile


def checkpoint_prefix(path: str | Path) -> str:
    """The bundle that a prefix, one of its files, or a folder stands for; of a folder it is the newest. A file of arrays of
    another program (`array_files`) stands for itself.

    Raises InputError, saying what is there, where there is none. Needs no TensorFlow.
    """
    if is_array_file(path):
        return str(path)
    path = Path(_BUNDLE_FILE.sub("", str(path)))
    if Path(f"{path}{INDEX_SUFFIX}").exists():
        return str(path)
    if not path.is_dir():
        raise InputError(f"{path}: there is no checkpoint of that name (no {path}{INDEX_SUFFIX}) and no folder")
    if found := prefixes(path):
        return str(max(found, key=writing_order))
    inside = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
    raise InputError(f"{path}: no checkpoint in this folder; it holds {inside}")


def prefixes(folder: Path, pattern: str = "*") -> list[Path]:
    """The bundles in a folder whose names match, in no order."""
    return [file.with_suffix("") for file in folder.glob(f"{pattern}{INDEX_SUFFIX}") if not file.name.startswith(".")]


def writing_order(prefix: Path) -> tuple[float, bool, int, float]:
    """A key that sorts the bundles of a folder from the oldest to the newest, see the head of this file.

    One whose description cannot be read is the newest where the `checkpoint` file says so: then it is for the reader to say
    what is wrong with it. Else it is the oldest, as is one that is being removed.
    """
    is_named = _named_by_state_file(prefix.parent) == prefix.name
    try:
        description = read_description(prefix)
        written = Path(f"{prefix}{INDEX_SUFFIX}").stat().st_mtime
    except (InputError, OSError):
        return (math.inf if is_named else -1, is_named, 0, 0.0)
    return (description.save_number, is_named, description.images_seen, written) if description else (0, is_named, 0, written)


def read_arrays(prefix: str | Path) -> dict[str, np.ndarray]:
    """All arrays of a bundle by name, checksums compared. Raises InputError where it cannot be read."""
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name != SECOND_FILE_ARRAY}
    except (tf.errors.OpError, ValueError, IndexError) as error:  # IndexError: the data file is cut short
        raise InputError(f"{prefix}: cannot be read as a checkpoint ({str(error).splitlines()[0]})") from error


def read_whole(prefix: str | Path) -> tuple[dict[str, np.ndarray], Description | None]:
    """The arrays of a bundle and its description, of one and the same writing also where another process replaces them.

    Raises InputError where one of them is damaged, or they do not belong together.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        digest = bundle_digest(prefix)
        try:
            found = read_arrays(prefix), read_description(prefix)
        except InputError:
            if attempt == _ATTEMPTS or bundle_digest(prefix) == digest:
                raise
        else:
            if bundle_digest(prefix) == digest:
                return found
    raise InputError(f"{prefix}: is replaced again and again while it is read")


def write_arrays(
    prefix: str, arrays: Mapping[str, np.ndarray], description: Description, *, newest: bool = True
) -> Description:
    """Write a bundle and its description, flushed to disk; they appear, or take the place of others, at once and whole.

    `newest`: in the folder it is then the newest, and its `checkpoint` file says so. Returns the description as it was
    written. Raises InputError where the disk is full or read-only; what stood there before is then untouched.
    """
    import tensorflow as tf

    target = Path(prefix)
    with _one_line_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(target, also=_LEFT_BY_EARLIER_VERSIONS) as folder:
            staged = folder / "whole"
            tf.raw_ops.SaveV2(prefix=str(staged), tensor_names=list(arrays), shape_and_slices=[""] * len(arrays),
                              tensors=[tf.convert_to_tensor(array) for array in arrays.values()])
            for suffix in BUNDLE_SUFFIXES:
                flush_to_disk(f"{staged}{suffix}")
            description = replace(description, save_number=_last_save_number(target.parent) + 1 if newest else 0)
            publish(staged, target, description)
        if newest:
            write_text(target.with_name("checkpoint"), f'model_checkpoint_path: "{target.name}"\n')
        flush_to_disk(target.parent)
    return description


def write_second_name(prefix: str, source: str, description: Description) -> None:
    """Let a bundle of ours be found under a second name too, without a copy where the file system has hard links."""
    target = Path(prefix)
    with _one_line_errors(target), unfinished_folder(target) as folder:
        publish(link_bundle(Path(source), folder / "whole"), target, description)


def _named_by_state_file(folder: Path) -> str | None:
    """The name in TensorFlow's `checkpoint` file, as far as it helps; other tools write absolute paths into it."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
    return Path(match[1]).name if match else None  # the folder may have been moved since


def _last_save_number(folder: Path) -> int:
    """Of what was written, or was about to be when a process was killed; damaged files do not count."""
    found = [0]
    for prefix in prefixes(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            number = json.loads(Path(f"{prefix}{DESCRIPTION_SUFFIX}").read_text(encoding="utf-8"))["save_number"]
            found.append(number if isinstance(number, int) else 0)
    return max(found)


@contextlib.contextmanager
def _one_line_errors(target: Path) -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"{target}: cannot be written ({_why(error)}); the checkpoints before it are whole") from error


def _why(error: Exception) -> str:
    if "No space left" in str(error):  # of Python, or inside a message of TensorFlow
        return "no space left on device"
    return getattr(error, "strerror", None) or str(error).splitlines()[0]
