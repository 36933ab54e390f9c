"""Read safetensors files."""

import os
import struct
from types import SimpleNamespace
from typing import Literal

import numpy as np
from safetensors import SafetensorError, deserialize

from dataset.files.bounded_files import read_regular_file
from dataset.files.untrusted_values import error_context, shown
from program_support.errors import InputError

BFLOAT16 = "bfloat16"
SUFFIXES = (".safetensors",)
_NUMBERS = {
    "F64": "f8",
    "F32": "f4",
    "F16": "f2",
    "BF16": BFLOAT16,
    "I64": "i8",
    "I32": "i4",
    "I16": "i2",
    "I8": "i1",
    "U64": "u8",
    "U32": "u4",
    "U16": "u2",
    "U8": "u1",
    "BOOL": "bool",
}  # safetensors -> NumPy


def recognizes(head: bytes) -> bool:
    """Return whether first bytes are a header length below 2^40 and the `{` of a JSON object."""
    return len(head) > 8 and head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] < 2**40


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the arrays by name, read-only, with bfloat16 as float32.

    Raises:
        InputError: naming the file, if it is damaged, larger than 1 GiB or has a data type that NumPy lacks.
    """
    with error_context(f"{path}:"):
        try:
            entries = dict(deserialize(read_regular_file(path)))  # in an order that differs from call to call
            arrays = {name: _array(name, **entries[name]) for name in sorted(entries)}
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})") from error
        except (SafetensorError, ValueError) as error:
            raise InputError(f"is truncated, damaged or not a safetensors file ({shown(str(error))})") from error
        if not arrays:
            raise InputError("holds no arrays")
        return arrays


def _array(name: str, dtype: str, shape: list[int], data: bytes | bytearray) -> np.ndarray:
    if dtype not in _NUMBERS:
        raise InputError(f"{shown(name)} has data type {dtype}; expected one of {', '.join(_NUMBERS)}")
    return numbers_of(memoryview(data).toreadonly(), _NUMBERS[dtype]).reshape(shape)


def numbers_of(content: bytes | memoryview, number: str, *, big_endian: bool = False) -> np.ndarray:
    """Return [n] numbers in native byte order; bfloat16, which NumPy lacks, as float32; nonzero bool bytes as True."""
    order: Literal[">", "<"] = ">" if big_endian else "<"
    if number == BFLOAT16:
        return (np.frombuffer(content, f"{order}u2").astype(np.uint32) << 16).view(np.float32)
    if number == "bool":
        return np.frombuffer(content, np.uint8) != 0
    stored = np.frombuffer(content, np.dtype(number).newbyteorder(order))
    return stored.astype(stored.dtype.newbyteorder("="), copy=False)


READER = SimpleNamespace(SUFFIXES=SUFFIXES, recognizes=recognizes, read=read)
