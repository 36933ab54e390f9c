"""PyTorch's first layout (before 0.1.10): a tar of three pickles with numbers between them.

torchvision's oldest files have it. The members are:

- `storages`: their number; for each (key, place, type), a count and its numbers; then the storages that are views of
  others;
- `tensors`: their number; for each (key, key of the storage, type), the rank, shape, strides, offset;
- `pickle`: the object, whose tensors are persistent ids.
"""

import math
import struct
import tarfile
from pathlib import PurePosixPath
from typing import Any

from dataset.files.untrusted_values import shown
from efficientdet.weights.bounded_file import BoundedFile
from efficientdet.weights.torch_pickle import LARGEST_PICKLE, LARGEST_SMALL_PICKLE, read_pickle_at
from efficientdet.weights.torch_tensors import ONLY_TENSORS, Storage, StorageKind, Tensor, tensor
from program_support.errors import InputError

_MOST_MEMBERS = 100  # torch wrote four
_MOST_OF_A_KIND = 100_000  # storages or tensors; a ResNet-152 has 932


def read_tar(file: BoundedFile) -> Any:
    """Return the saved object; storages are read later.

    Raises:
        InputError: without the file's name.
    """
    members = _members_of_tar(file)
    if missing := [name for name in ("storages", "tensors", "pickle") if name not in members]:
        raise InputError(f"is a tar without {', '.join(missing)}; {ONLY_TENSORS}")
    storages = _storages_of_tar(file, members["storages"])
    tensors: dict[str, Tensor] = {}
    count, place = read_pickle_at(file, members["tensors"], LARGEST_SMALL_PICKLE)
    for _ in range(_integer(count, most=_MOST_OF_A_KIND)):
        (key, storage, _), place = _triple(*read_pickle_at(file, place, LARGEST_SMALL_PICKLE))
        [dimensions] = struct.unpack("<i4x", file.content(place, 8))
        length = 2 * max(dimensions, 0) + 1
        numbers = struct.unpack(f"<{length}q", file.content(place + 8, 8 * length))
        place += 8 + 8 * length
        shape, strides, offset = numbers[:dimensions], numbers[dimensions:-1], numbers[-1]
        tensors[str(key)] = tensor(storages.get(_integer(storage)), offset, shape, strides)

    def persistent(identity: Any) -> Tensor:
        if type(identity) is not str or identity not in tensors:
            raise InputError(f"has the persistent id {shown(identity)}; {ONLY_TENSORS}")
        return tensors[identity]

    return read_pickle_at(file, members["pickle"], LARGEST_PICKLE, persistent)[0]


def _storages_of_tar(file: BoundedFile, place: int) -> dict[int, Storage]:
    storages: dict[int, Storage] = {}
    count, place = read_pickle_at(file, place, LARGEST_SMALL_PICKLE)
    for _ in range(_integer(count, most=_MOST_OF_A_KIND)):
        (key, _, kind), place = _triple(*read_pickle_at(file, place, LARGEST_SMALL_PICKLE))
        if type(kind) is not StorageKind:
            raise InputError(f"has a storage of type {shown(kind)}; {ONLY_TENSORS}")
        [numbers] = struct.unpack("<q", file.content(place, 8))
        storages[_integer(key)] = Storage(kind, _integer(numbers))
        place = storages[key].end_in(file, place)
    views, _ = read_pickle_at(file, place, LARGEST_PICKLE)
    if views != []:
        raise InputError("has storages that are views of others; save it again with a newer version of PyTorch")
    return storages


def _members_of_tar(file: BoundedFile) -> dict[str, int]:
    """Return the offsets of the regular files by the last part of their names. Nothing is extracted.

    `tarfile` parses each header but does not iterate: it would follow sizes and extended headers without end.
    """
    members, place = {}, 0
    for _ in range(_MOST_MEMBERS):
        header = file.content(place, min(tarfile.BLOCKSIZE, max(file.size - place, 0)))
        if not header.strip(b"\0"):
            break
        try:
            member = tarfile.TarInfo.frombuf(header, "latin-1", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise InputError(f"is a damaged tar: invalid header at offset {place} ({error})") from error
        place += tarfile.BLOCKSIZE
        if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            members[PurePosixPath(member.name).name] = place
        place += -(-max(member.size, 0) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return members


def _triple(value: Any, place: int) -> tuple[tuple, int]:
    if type(value) is not tuple or len(value) != 3:
        raise InputError(f"describes a storage or tensor by {shown(value)}; expected three entries")
    return value, place


def _integer(value: Any, *, most: float = math.inf) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise InputError(f"has {shown(value)}; expected a non-negative integer")
    return value
