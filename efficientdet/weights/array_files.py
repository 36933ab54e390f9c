"""Single files of arrays by name that other programs write: of torch and of safetensors, told by their content."""

import os
import struct

import numpy as np
from safetensors import SafetensorError, deserialize

from dataset.files.bounded_files import open_regular_file, read_regular_file
from dataset.files.untrusted_values import shown, told_with
from efficientdet.weights.torch_files import is_torch_head, read_torch_file
from efficientdet.weights.torch_tensors import BFLOAT16, numbers_of
from program_support.errors import InputError

_HEAD = 512
_SUFFIXES = (".pth", ".pt", ".safetensors")  # then it is for the reader to say what is wrong with the content

_NUMBERS = {"F64": "f8", "F32": "f4", "F16": "f2", "BF16": BFLOAT16, "I64": "i8", "I32": "i4", "I16": "i2", "I8": "i1",
            "U64": "u8", "U32": "u4", "U16": "u2", "U8": "u1", "BOOL": "bool"}  # of safetensors -> as numpy calls it


def is_array_file(path: str | os.PathLike) -> bool:
    """Whether a path is that of a file which `read_array_file` is for; not where nothing is there, or a TensorFlow bundle."""
    head = _head(path)
    return is_torch_head(head) or _is_safetensors_head(head) or (os.path.isfile(path) and os.fspath(path).endswith(_SUFFIXES))


def read_array_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file under the names and in the layout of the program that wrote it, not writeable.

    Raises InputError, naming the file, where it is damaged or holds anything else.
    """
    is_safetensors = os.fspath(path).endswith(".safetensors") or _is_safetensors_head(_head(path))
    return read_safetensors_file(path) if is_safetensors else read_torch_file(path)


def read_safetensors_file(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the arrays under their names, not writeable, bfloat16 as float32.

    Raises InputError, naming the file, for one that is damaged, larger than 1 GiB or has a type of number that numpy lacks.
    """
    with told_with(f"{path}:"):
        try:
            entries = deserialize(read_regular_file(path))
            arrays = {name: _array(name, **entry) for name, entry in entries}
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})") from error
        except (SafetensorError, ValueError) as error:
            raise InputError(f"is cut short, damaged or not of safetensors ({shown(str(error))})") from error
        if not arrays:
            raise InputError("holds no arrays")
        return arrays


def _array(name: str, dtype: str, shape: list[int], data: bytes | bytearray) -> np.ndarray:
    if dtype not in _NUMBERS:
        raise InputError(f"{shown(name)} has numbers of type {dtype}; {', '.join(_NUMBERS)} are read")
    return numbers_of(memoryview(data).toreadonly(), _NUMBERS[dtype]).reshape(shape)


def _head(path: str | os.PathLike) -> bytes:
    """The first bytes of a regular file; none where there is no such file."""
    try:
        with open_regular_file(path) as stream:
            return stream.read(_HEAD)
    except OSError:
        return b""


def _is_safetensors_head(head: bytes) -> bool:
    """A length of less than 2^40, and the `{` of a json object."""
    return len(head) > 8 and head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] < 2**40
