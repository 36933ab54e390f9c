"""Pickles and storages that follow one another in a file, as torch wrote them before it took to zips."""

import struct
from collections.abc import Callable
from typing import Any

from efficientdet.weights.bounded_file import BoundedFile
from efficientdet.weights.torch_pickle import read_pickle
from efficientdet.weights.torch_tensors import NAMES, Storage
from program_support.errors import InputError

LARGEST_SMALL_PICKLE = 4096  # bytes; of a number, the machine, a storage or a tensor: a few entries


def pickle_at(
    file: BoundedFile, start: int, most: int, persistent: Callable[[Any], Any] | None = None
) -> tuple[Any, int]:
    """The value of the pickle, of `most` bytes, that begins there, and where it ends. Raises InputError."""
    value, length = read_pickle(file.content(start, max(min(most, file.size - start), 0)), names=NAMES, persistent=persistent)
    return value, start + length


def storage_at(file: BoundedFile, start: int, storage: Storage) -> int:
    """Where a storage ends that begins there with its count; it is read from there when its numbers are asked for.

    Raises InputError where the count is another or the file too short.
    """
    [count] = struct.unpack("<q", file.content(start, 8))
    length = count * storage.kind.width
    if count != storage.count or start + 8 + length > file.size:
        raise InputError(f"has a storage of {count} numbers at byte {start}; wanted {storage.count}, within {file.size} bytes")
    storage.read = lambda: file.content(start + 8, length)
    return start + 8 + length
