"""Checkpoints: TensorFlow bundles of named arrays, each with a description as JSON beside it.

A bundle holds `<name>` for every weight of the model, `<name>/ExponentialMovingAverage`, `<name>/Momentum` and
`global_step` as the published TensorFlow checkpoints do, so that one reader supports both.

The newest checkpoint in a folder is the one with the highest `save_number` in the JSON, which survives copying.
Third-party checkpoints, in which it is missing, are older than all others. Among these, the checkpoint in the folder's
`checkpoint` file is the newest, then the one with the later file time.

The files of a bundle (`.index`, `.data-00000-of-00001`) are replaced atomically, though two files cannot be renamed at
once: an `.index` states the number of its data files, which is part of their names. So a bundle with one data file is
first published as one with two: its data file under another name, and an empty one. Renaming the `.index` then replaces
the bundle in one step, also for TensorFlow's own tools. A second such step restores the usual names. A killed process
leaves either the old bundle or the new one intact.
"""

import contextlib
import glob
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataset.files.bounded_files import open_regular_file
from efficientdet.checkpoints.description import (
    DESCRIPTION_SUFFIX,
    Description,
    bundle_digest,
    read_description,
    replaced_description,
    write_description,
)
from efficientdet.configuration.flag_paths import typed_name
from efficientdet.families.published_files import published_files
from efficientdet.weights.downloads import local_path
from efficientdet.weights.readers import reader_of
from program_support.atomic_files import flush_to_disk, link_or_copy, unfinished_folder, write_text
from program_support.errors import InputError, nearest_name
from program_support.file_patterns import without_magic

INDEX_SUFFIX = ".index"
BUNDLE_SUFFIXES = (".data-00000-of-00001", INDEX_SUFFIX)  # order of publication
SECOND_FILE_ARRAY = "_of_the_second_data_file"  # an empty array: a data file has at least one array
_BUNDLE_FILE = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
_ATTEMPTS = 5  # another process may replace a checkpoint while it is read


def checkpoint_prefix(path: str | Path) -> str:
    """Return the prefix of the checkpoint that a prefix, one of its files or a folder (its newest checkpoint) names.

    The output folder of a quick start stands for its folder `model`. NVIDIA's programs write emackpt-03 for epoch 3;
    leading zeros of the number do not matter.

    The path of a third-party file (`weights/readers.py`) is returned unchanged. Does not import TensorFlow.

    Raises:
        InputError: there is no checkpoint, or it cannot be read.
    """
    try:
        return str(path) if reader_of(path) else str(_bundle_prefix(Path(_BUNDLE_FILE.sub("", str(path)))))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _bundle_prefix(path: Path) -> Path:
    """Return the prefix of the checkpoint of this name or the newest in this folder.

    Raises:
        InputError: there is none; OSError without permission.
    """
    if Path(f"{path}{INDEX_SUFFIX}").exists():
        return path
    if not path.is_dir() and (same := _with_same_number(path)):
        return same
    if path.is_file():
        open_regular_file(path).close()
        raise InputError(f"{path}: is neither a checkpoint nor a file of weights of PyTorch, safetensors or Keras")
    if not path.is_dir():
        raise InputError(f"{path}: there is no checkpoint of that name (no {path}{INDEX_SUFFIX}) and no folder")
    if candidates := prefixes(path) or prefixes(path / "model"):  # the latter: output folder of a quick start
        return max(candidates, key=writing_order)
    inside = ", ".join(sorted(file.name for file in path.iterdir())[:5]) or "nothing"
    raise InputError(f"{path}: no checkpoint in this folder; it holds {inside}")


def _with_same_number(path: Path) -> Path | None:
    """Return the checkpoint whose number is written with other leading zeros: emackpt-3 for emackpt-03."""
    name, _, number = path.name.rpartition("-")
    if not name or not number.isdecimal():
        return None
    candidates = [
        prefix
        for prefix in prefixes(path.parent, f"{glob.escape(name)}-*")
        if (other := prefix.name.removeprefix(f"{name}-")).isdecimal() and int(other) == int(number)
    ]
    return candidates[0] if len(candidates) == 1 else None


def prefixes(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the prefixes of the bundles in a folder that match a pattern, unordered."""
    return [file.with_suffix("") for file in folder.glob(f"{pattern}{INDEX_SUFFIX}") if not file.name.startswith(".")]


def writing_order(prefix: Path) -> tuple[float, bool, float]:
    """Return a key that sorts the bundles of a folder from the oldest to the newest; see the module's docstring.

    A bundle with an unreadable description is the newest if the `checkpoint` file names it, so that reading it reports
    the error. Otherwise it is the oldest, as is a bundle that is being removed.
    """
    is_named = _named_by_state_file(prefix.parent) == prefix.name
    try:
        description = read_description(prefix)
        written = Path(f"{prefix}{INDEX_SUFFIX}").stat().st_mtime
    except (InputError, OSError):
        return (math.inf if is_named else -1, is_named, 0.0)
    return (description.save_number if description else 0, is_named, written)


def read_arrays(prefix: str | Path) -> dict[str, np.ndarray]:
    """Return all arrays of a bundle by name, with verified checksums.

    Raises:
        InputError: it cannot be read.
    """
    import tensorflow as tf

    try:
        with without_magic(prefix) as readable:
            reader = tf.train.load_checkpoint(readable)
            names = [name for name in reader.get_variable_to_shape_map() if name != SECOND_FILE_ARRAY]
            return {name: reader.get_tensor(name) for name in names}
    except (tf.errors.OpError, ValueError, IndexError) as error:  # IndexError: the data file is truncated
        raise InputError(f"{prefix}: cannot be read as a checkpoint ({str(error).splitlines()[0]})") from error


def read_bundle(prefix: str | Path) -> tuple[dict[str, np.ndarray], Description | None]:
    """Return the arrays and the description of a bundle, consistent even if another process replaces it meanwhile.

    Raises:
        InputError: one of them is damaged, or if they do not belong together.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        digest = bundle_digest(prefix)
        try:
            contents = read_arrays(prefix), read_description(prefix)
        except InputError:
            if attempt == _ATTEMPTS or bundle_digest(prefix) == digest:
                raise
        else:
            if bundle_digest(prefix) == digest:
                return contents
    raise InputError(f"{prefix}: was replaced {_ATTEMPTS} times while it was read; try again")


def write_arrays(
    prefix: str, arrays: Mapping[str, np.ndarray], description: Description, *, newest: bool = True
) -> Description:
    """Write a bundle and its description atomically, flushed to disk, and return the description as written.

    `newest`: make it the newest checkpoint of the folder and name it in the `checkpoint` file.

    Raises:
        InputError: the disk is full or read-only; an existing checkpoint of that name is then unchanged.
    """
    import tensorflow as tf

    target = Path(prefix)
    with _one_line_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(target) as folder:
            staged = folder / "staged"
            tf.raw_ops.SaveV2(
                prefix=str(staged),
                tensor_names=list(arrays),
                shape_and_slices=[""] * len(arrays),
                tensors=[tf.convert_to_tensor(array) for array in arrays.values()],
            )
            for suffix in BUNDLE_SUFFIXES:
                flush_to_disk(f"{staged}{suffix}")
            description = replace(description, save_number=_last_save_number(target.parent) + 1 if newest else 0)
            _publish(staged, target, description)
        if newest:
            write_text(target.with_name("checkpoint"), f'model_checkpoint_path: "{target.name}"\n')
        flush_to_disk(target.parent)
    return description


def write_second_name(prefix: str, source: str, description: Description) -> None:
    """Give a bundle a second name, by hard links if the file system supports them."""
    target = Path(prefix)
    with _one_line_errors(target), unfinished_folder(target) as folder:
        _publish(_link_bundle(Path(source), folder / "staged"), target, description)


def _named_by_state_file(folder: Path) -> str | None:
    """Return the name in TensorFlow's `checkpoint` file without its folder, or None."""
    try:
        text = (folder / "checkpoint").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.MULTILINE)
    # Other tools write absolute paths, and the folder may have been moved.
    return Path(match[1]).name if match else None


def _last_save_number(folder: Path) -> int:
    """Return the highest save number in the folder, also of unfinished checkpoints; damaged files are ignored."""
    save_numbers = [0]
    for prefix in prefixes(folder):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            number = json.loads(Path(f"{prefix}{DESCRIPTION_SUFFIX}").read_text(encoding="utf-8"))["save_number"]
            save_numbers.append(number if isinstance(number, int) else 0)
    return max(save_numbers)


@contextlib.contextmanager
def _one_line_errors(target: Path) -> Iterator[None]:
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"{target}: cannot be written ({_why(error)}); earlier checkpoints are intact") from error


def _why(error: Exception) -> str:
    if "No space left" in str(error):  # raised by Python, or part of a message of TensorFlow
        return "no space left on device"
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def _publish(staged: Path, target: Path, description: Description) -> None:
    """Move a bundle with one data file and its description to the name `target`.

    Concurrent readers, and readers after a kill at any point, find either the old bundle or the new one.

    Raises:
        OSError: the files cannot be written.
    """
    replaced, digest = replaced_description(target), _digest_of_written(staged)
    if _data_file_count(target) == 1:
        bridge = _as_two_data_files(staged)
        write_description(target, description, bundles=[_digest_of_written(bridge), digest], replaces=replaced)
        _exchange(bridge, target)
    else:
        write_description(target, description, bundles=[digest], replaces=replaced)
    _exchange(staged, target)
    flush_to_disk(target.parent)
    remove_unused_data_files(target)
    if replaced:
        write_description(target, description, bundles=[digest])


def _link_bundle(source: Path, target: Path) -> Path:
    """Hard link, or copy, the files of a bundle with one data file; return `target`.

    Raises:
        OSError: the files cannot be written.
    """
    for suffix in BUNDLE_SUFFIXES:
        link_or_copy(f"{source}{suffix}", f"{target}{suffix}")
    return target


def remove_unused_data_files(prefix: Path) -> None:
    """Remove data files of the previous bundle, to which the index does not refer.

    Raises:
        OSError: a file cannot be removed.
    """
    if count := _data_file_count(prefix):
        for file in _data_files_of(prefix):
            if not file.name.endswith(f"-of-{count:05d}"):
                file.unlink()


def remove_bundle(prefix: Path) -> None:
    """Remove a bundle and its description.

    Raises:
        OSError: a file cannot be removed.
    """
    Path(f"{prefix}{INDEX_SUFFIX}").unlink(missing_ok=True)  # first, so that a kill leaves no damaged checkpoint
    for file in _data_files_of(prefix):
        file.unlink()
    Path(f"{prefix}{DESCRIPTION_SUFFIX}").unlink(missing_ok=True)


def _digest_of_written(prefix: Path) -> str:
    digest = bundle_digest(prefix)
    assert digest is not None  # this process has just written the index
    return digest


def _exchange(staged: Path, target: Path) -> None:
    """Replace a bundle by one with other names of data files: renaming the index is the atomic step."""
    for file in _data_files_of(staged):
        os.replace(file, f"{target}{file.name.removeprefix(staged.name)}")
    flush_to_disk(target.parent)
    os.replace(f"{staged}{INDEX_SUFFIX}", f"{target}{INDEX_SUFFIX}")


def _data_files_of(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))


def _data_file_count(prefix: Path) -> int:
    """Return the number of data files in a bundle's index; 0 for a missing or invalid index, or more than 127 files."""
    try:
        with open(f"{prefix}{INDEX_SUFFIX}", "rb") as stream:
            head = stream.read(5)
    except FileNotFoundError:
        return 0
    # The table's first entry has the empty key: 0 bytes shared with a key before, 0 of its own, the length of the
    # value, then a BundleHeaderProto (tensorflow/core/protobuf/tensor_bundle.proto), whose field 1 is num_shards, in
    # one byte if it is below 128.
    return head[4] if len(head) == 5 and head[:2] == b"\0\0" and head[3] == 0x08 and head[4] < 0x80 else 0


def _as_two_data_files(staged: Path) -> Path:
    """Write a bundle with the same arrays and two data files, the first a hard link; return its prefix."""
    import tensorflow as tf

    linked = _link_bundle(staged, staged.with_name("linked"))
    empty, bridge = staged.with_name("empty"), staged.with_name("bridge")
    tf.raw_ops.SaveV2(
        prefix=str(empty), tensor_names=[SECOND_FILE_ARRAY], shape_and_slices=[""], tensors=[tf.zeros([0], tf.int8)]
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(linked), str(empty)], destination_prefix=str(bridge), delete_old_dirs=False
    )
    flush_to_disk(f"{bridge}{INDEX_SUFFIX}")
    return bridge


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
    from efficientdet.options.train import PRETRAINED_BACKBONE

    if path and Path(path, "saved_model.pb").is_file():
        path = str(Path(path, "variables", "variables"))
    if path and path != PRETRAINED_BACKBONE:
        existing_checkpoint(path, "backbone_init")
    return path or None
