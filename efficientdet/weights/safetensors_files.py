"""Files of the safetensors format as arrays by name: a length, a json header, the numbers one array after the other.

github.com/huggingface/safetensors, "Format".
"""

import json
import math
import os
import struct
from typing import Any

import numpy as np

from dataset.files.bounded_files import open_regular_file
from dataset.files.untrusted_values import shown, told_with
from efficientdet.weights.bounded_file import BoundedFile
from efficientdet.weights.torch_tensors import BFLOAT16, StorageKind, numbers_of
from program_support.errors import InputError

_LARGEST_HEADER = 16 * 2**20  # bytes; of 100,000 arrays. The format allows 100 MB
_NUMBERS = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": BFLOAT16, "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
            "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "bool"}
_LENGTH_BYTES = 8
_MOST_DIMENSIONS = 16
_LONGEST_SIDE = 2**48  # of an array without numbers; of others the file is the limit


def read_safetensors_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays under their names, not writeable, bfloat16 as float32.

    Raises InputError, naming the file, for one that is damaged or has a type of number that numpy lacks.
    """
    with told_with(f"{path}:"):
        try:
            with open_regular_file(path) as stream:
                return _arrays(BoundedFile(stream))
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})") from error


def _arrays(file: BoundedFile) -> dict[str, np.ndarray]:
    [length] = struct.unpack("<Q", file.content(0, _LENGTH_BYTES))
    if length > _LARGEST_HEADER:
        raise InputError(f"has a header of {length} bytes; at most {_LARGEST_HEADER} are read")
    start, arrays = _LENGTH_BYTES + length, {}
    place = start
    for name, (number, shape, begin, end) in sorted(_entries(file.content(_LENGTH_BYTES, length)).items(), key=_by_place):
        wanted = StorageKind(number).width * math.prod(shape)
        if (start + begin, end - begin) != (place, wanted):
            raise InputError(f"{shown(name)} lies at {begin} to {end}; wanted {wanted} bytes from {place - start} on")
        arrays[name] = numbers_of(file.content(place, wanted), number).reshape(shape)
        place += wanted
    if place != file.size:
        raise InputError(f"has {file.size - place} bytes behind its last array")
    if not arrays:
        raise InputError("holds no arrays")
    return arrays


def _by_place(entry: tuple[str, tuple[str, tuple[int, ...], int, int]]) -> tuple[int, int]:
    """Arrays without numbers come before the one that begins where they do."""
    return entry[1][2:]


def _entries(header: bytes) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """Of each array its type of number, shape, and the bytes that it begins at and ends before."""
    try:
        read = json.loads(header.decode("utf-8"), object_pairs_hook=_distinct)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"has a header that is not json ({shown(str(error))})") from error
    if type(read) is not dict:
        raise InputError(f"has a header that is a {type(read).__name__}; wanted arrays by name")
    return {name: _entry(name, value) for name, value in read.items() if name != "__metadata__"}


def _entry(name: str, value: Any) -> tuple[str, tuple[int, ...], int, int]:
    fields = [value.get(key) for key in ("dtype", "shape", "data_offsets")] if type(value) is dict else []
    if len(fields) != 3 or type(fields[0]) is not str or type(fields[1]) is not list or type(fields[2]) is not list:
        raise InputError(f"{shown(name)} is described by {shown(value)}; wanted dtype, shape and data_offsets")
    number, shape, offsets = fields
    if number not in _NUMBERS:
        raise InputError(f"{shown(name)} has numbers of type {shown(number)[1:-1]}; {', '.join(_NUMBERS)} are read")
    are_whole = all(type(side) is int and 0 <= side <= _LONGEST_SIDE for side in (*shape, *offsets))
    is_array = are_whole and len(shape) <= _MOST_DIMENSIONS and math.prod(max(side, 1) for side in shape) <= _LONGEST_SIDE
    if not is_array or len(offsets) != 2:
        raise InputError(f"{shown(name)} has shape {shown(shape)} and data_offsets {shown(offsets)}; wanted whole numbers")
    return _NUMBERS[number], tuple(shape), *offsets


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise InputError(f"has a header that gives a key twice ({shown(list(found))})")
    return found
