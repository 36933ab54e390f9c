"""Records before the first step: whole, undamaged, and with objects to learn from.

The framing (lengths that add up to the end of the file) is read by `index_records` in any case. What is verified here
reads every byte: the checksum of each record, and whether it says anything about objects.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from dataset.record_index import RecordIndex
from object_detection.errors import InputError

WHEN = ("auto", "always", "never")
AUTO_BYTES = 2**30  # read and checked within a few seconds from a disk's cache
_BOX_KEYS = (b"image/object/bbox/xmin", b"image/object/bbox/ymax", b"image/object/class/label")


def verify_records(index: RecordIndex, *, when: str, max_bad_fraction: float, say: Callable[[str], None]) -> RecordIndex:
    """The index without records that lack the keys of boxes altogether; an empty list of boxes is a legal image.

    `when`: "auto" verifies up to AUTO_BYTES, "always" any amount, "never" nothing. Raises InputError, with file and
    offset, for a record whose checksum does not fit, and where more than `max_bad_fraction` of the records lack keys.
    """
    if when not in WHEN:
        raise InputError(f"--verify_records={when}: wanted one of {', '.join(WHEN)}")
    if when == "never" or (when == "auto" and int(index.lengths.sum()) > AUTO_BYTES):
        return index
    has_keys = np.concatenate([_verify_file(index, number) for number in range(len(index.paths))])
    lacking = np.flatnonzero(~has_keys)
    if not lacking.size:
        return index
    first = lacking[0]
    found = (f"{lacking.size} of {len(index)} records have no keys of boxes (image/object/bbox/..), the first at byte "
             f"{_start(index, first)} of {index.paths[index.file_numbers[first]]}")
    if lacking.size > max_bad_fraction * len(index):
        raise InputError(f"{found}: were they made without annotations? --max_bad_fraction={lacking.size / len(index):.3g} "
                         "would skip them")
    say(f"warning: {found}; skipped")
    return RecordIndex(paths=index.paths, file_numbers=index.file_numbers[has_keys], offsets=index.offsets[has_keys],
                       lengths=index.lengths[has_keys])


def _verify_file(index: RecordIndex, number: int) -> np.ndarray:
    """Whether each record of a file has the keys, [n] bool."""
    numbers = np.flatnonzero(index.file_numbers == number)
    has_keys = []
    try:
        for payload in tf.data.TFRecordDataset(index.paths[number]).as_numpy_iterator():
            has_keys.append(all(key in payload for key in _BOX_KEYS))
    except tf.errors.DataLossError as error:
        raise InputError(f"{index.paths[number]}: damaged: the checksum of the record at byte "
                         f"{_start(index, numbers[len(has_keys)])} does not fit; convert again") from error
    return np.array(has_keys, bool)


def _start(index: RecordIndex, number: int) -> int:
    return int(index.offsets[number]) - 12  # its length and the checksum of that stand before it
