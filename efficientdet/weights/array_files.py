"""Single files of arrays by name that other programs write: of torch and of safetensors, told by their content."""

import os
import struct

import numpy as np

from dataset.files.bounded_files import open_regular_file
from efficientdet.weights.safetensors_files import read_safetensors_file
from efficientdet.weights.torch_files import is_torch_head, read_torch_file

_HEAD = 512
_SUFFIXES = (".pth", ".pt", ".safetensors")  # then it is for the reader to say what is wrong with the content


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
