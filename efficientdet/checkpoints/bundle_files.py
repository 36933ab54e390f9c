"""Atomic replacement of the files of a TensorFlow bundle (`.index`, `.data-00000-of-00001`).

Two files cannot be renamed at once. But an `.index` states the number of its data files, which is part of their names.
So a bundle with one data file is first published as one with two: its data file under another name, and an empty one.
Renaming the `.index` then replaces the bundle in one step, also for TensorFlow's own tools. A second such step restores
the usual names. A killed process leaves either the old bundle or the new one intact.
"""

import glob
import os
from pathlib import Path

from efficientdet.checkpoints.description import (
    DESCRIPTION_SUFFIX,
    Description,
    bundle_digest,
    replaced_description,
    write_description,
)
from program_support.atomic_files import flush_to_disk, link_or_copy

INDEX_SUFFIX = ".index"
BUNDLE_SUFFIXES = (".data-00000-of-00001", INDEX_SUFFIX)  # order of publication
SECOND_FILE_ARRAY = "_of_the_second_data_file"  # an empty array: a data file has at least one array


def publish(staged: Path, target: Path, description: Description) -> None:
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


def link_bundle(source: Path, target: Path) -> Path:
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

    linked = link_bundle(staged, staged.with_name("linked"))
    empty, bridge = staged.with_name("empty"), staged.with_name("bridge")
    tf.raw_ops.SaveV2(
        prefix=str(empty), tensor_names=[SECOND_FILE_ARRAY], shape_and_slices=[""], tensors=[tf.zeros([0], tf.int8)]
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(linked), str(empty)], destination_prefix=str(bridge), delete_old_dirs=False
    )
    flush_to_disk(f"{bridge}{INDEX_SUFFIX}")
    return bridge
