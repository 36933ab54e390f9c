"""The files of a TensorFlow bundle (`.index`, `.data-00000-of-00001`), put where another bundle may stand.

Two files cannot be renamed at once, but an `.index` says of how many data files it is, and their number is in their names.
So a bundle of one data file is first published as one of two: its data file under another name, beside one that holds
nothing. The rename of the `.index` then exchanges everything in one step, for TensorFlow's own tools too. A second such step
brings the files to their usual names. A process that is killed leaves the old bundle or the new one, whole.
"""

import glob
import os
from pathlib import Path

from efficientdet.checkpoints.description import (
    DESCRIPTION_SUFFIX,
    Description,
    bundle_digest,
    said_of,
    write_description,
)
from program_support.atomic_files import flush_to_disk, link_or_copy

INDEX_SUFFIX = ".index"
BUNDLE_SUFFIXES = (".data-00000-of-00001", INDEX_SUFFIX)  # in the order in which they may appear
SECOND_FILE_ARRAY = "_of_the_second_data_file"  # without values; a data file is of one array at least


def publish(staged: Path, target: Path, description: Description) -> None:
    """Move a whole bundle of one data file, with what it means, to the name `target`. Raises OSError.

    Whoever reads meanwhile, or after a kill at any point, finds what stood there before or what is new.
    """
    before, digest = said_of(target), bundle_digest(staged)
    if _data_file_count(target) == 1:
        bridge = _as_two_data_files(staged)
        write_description(target, description, bundles=[bundle_digest(bridge), digest], replaces=before)
        _exchange(bridge, target)
    else:
        write_description(target, description, bundles=[digest], replaces=before)
    _exchange(staged, target)
    flush_to_disk(target.parent)
    remove_unused_data_files(target)
    if before:
        write_description(target, description, bundles=[digest])


def link_bundle(source: Path, target: Path) -> Path:
    """Give the files of a bundle of one data file second names, or copy them; returns `target`. Raises OSError."""
    for suffix in BUNDLE_SUFFIXES:
        link_or_copy(f"{source}{suffix}", f"{target}{suffix}")
    return target


def remove_unused_data_files(prefix: Path) -> None:
    """Remove the data files of which a bundle's index does not speak: of the bundle before it. Raises OSError."""
    if count := _data_file_count(prefix):
        for file in _data_files_of(prefix):
            if not file.name.endswith(f"-of-{count:05d}"):
                file.unlink()


def remove_bundle(prefix: Path) -> None:
    """Remove a bundle and its description. Raises OSError."""
    Path(f"{prefix}{INDEX_SUFFIX}").unlink(missing_ok=True)  # without one there is no checkpoint, whatever a kill leaves
    for file in _data_files_of(prefix):
        file.unlink()
    Path(f"{prefix}{DESCRIPTION_SUFFIX}").unlink(missing_ok=True)


def _exchange(staged: Path, target: Path) -> None:
    """The new data files have names of which the index that stands there knows nothing; its rename is the moment of change."""
    for file in _data_files_of(staged):
        os.replace(file, f"{target}{file.name.removeprefix(staged.name)}")
    flush_to_disk(target.parent)
    os.replace(f"{staged}{INDEX_SUFFIX}", f"{target}{INDEX_SUFFIX}")


def _data_files_of(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))


def _data_file_count(prefix: Path) -> int:
    """Of how many data files a bundle's index speaks; 0 where there is no index, it is none, or they are more than 127."""
    try:
        with open(f"{prefix}{INDEX_SUFFIX}", "rb") as stream:
            head = stream.read(5)
    except FileNotFoundError:
        return 0
    # The table's first entry has the empty key: 0 bytes shared with a key before, 0 of its own, the length of the value,
    # then a BundleHeaderProto (tensorflow/core/protobuf/tensor_bundle.proto), whose field 1 is num_shards, in a byte if small.
    return head[4] if len(head) == 5 and head[:2] == b"\0\0" and head[3] == 0x08 and head[4] < 0x80 else 0


def _as_two_data_files(staged: Path) -> Path:
    """The prefix of a second bundle with the same arrays, whose first data file is a second name of that of the first."""
    import tensorflow as tf

    linked = link_bundle(staged, staged.with_name("linked"))
    nothing, bridge = staged.with_name("nothing"), staged.with_name("bridge")
    tf.raw_ops.SaveV2(prefix=str(nothing), tensor_names=[SECOND_FILE_ARRAY], shape_and_slices=[""],
                      tensors=[tf.zeros([0], tf.int8)])
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=[str(linked), str(nothing)], destination_prefix=str(bridge),
                                  delete_old_dirs=False)
    flush_to_disk(f"{bridge}{INDEX_SUFFIX}")
    return bridge
