"""torch's first layout (before 0.1.10), a tar of three pickles with numbers between them; torchvision's oldest files have it.

- `storages`: how many; of each (key, place, type), a count and its numbers; then the storages that are parts of others;
- `tensors`: how many; of each (key, key of the storage, type), the number of sides, sides, strides, offset;
- `pickle`: the object, whose tensors are persistent ids.
"""

import math
import struct
from pathlib import PurePosixPath
from typing import Any

from dataset.files.untrusted_values import shown
from efficientdet.weights.bounded_file import BoundedFile
from efficientdet.weights.torch_pickle import LARGEST_PICKLE, ONLY_TENSORS
from efficientdet.weights.torch_storages import LARGEST_SMALL_PICKLE, pickle_at, storage_at
from efficientdet.weights.torch_tensors import Storage, StorageKind, Tensor, tensor
from program_support.errors import InputError

_TAR_BLOCK = 512
_MOST_OF_A_KIND = 100_000  # storages or tensors; a ResNet-152 has 932


def read_tar(file: BoundedFile) -> Any:
    """What was saved, with tensors whose storages are still to be read. Raises InputError, without the name of the file."""
    members = _members_of_tar(file)
    if missing := [name for name in ("storages", "tensors", "pickle") if name not in members]:
        raise InputError(f"is a tar without {', '.join(missing)}; {ONLY_TENSORS}")
    storages = _storages_of_tar(file, members["storages"])
    tensors: dict[str, Tensor] = {}
    count, place = pickle_at(file, members["tensors"], LARGEST_SMALL_PICKLE)
    for _ in range(_whole(count, most=_MOST_OF_A_KIND)):
        (key, storage, _), place = _three(*pickle_at(file, place, LARGEST_SMALL_PICKLE))
        [dimensions] = struct.unpack("<i4x", file.content(place, 8))
        numbers = struct.unpack(f"<{2 * max(dimensions, 0) + 1}q", file.content(place + 8, 8 * (2 * max(dimensions, 0) + 1)))
        place += 8 + 8 * len(numbers)
        tensors[str(key)] = tensor(storages.get(_whole(storage)), numbers[-1], numbers[:dimensions], numbers[dimensions:-1])

    def persistent(identity: Any) -> Tensor:
        if type(identity) is not str or identity not in tensors:
            raise InputError(f"has the persistent id {shown(identity)}; {ONLY_TENSORS}")
        return tensors[identity]

    return pickle_at(file, members["pickle"], LARGEST_PICKLE, persistent)[0]


def _storages_of_tar(file: BoundedFile, place: int) -> dict[int, Storage]:
    storages: dict[int, Storage] = {}
    count, place = pickle_at(file, place, LARGEST_SMALL_PICKLE)
    for _ in range(_whole(count, most=_MOST_OF_A_KIND)):
        (key, _, kind), place = _three(*pickle_at(file, place, LARGEST_SMALL_PICKLE))
        if type(kind) is not StorageKind:
            raise InputError(f"has a storage of type {shown(kind)}; {ONLY_TENSORS}")
        [numbers] = struct.unpack("<q", file.content(place, 8))
        storages[_whole(key)] = Storage(kind, _whole(numbers))
        place = storage_at(file, place, storages[key])
    views, _ = pickle_at(file, place, LARGEST_PICKLE)
    if views != []:
        raise InputError("has storages that are parts of others; save it again with a newer torch")
    return storages


def _members_of_tar(file: BoundedFile) -> dict[str, int]:
    """Where the contents of the regular files begin (POSIX.1-1988 ustar; the extended headers say nothing that matters)."""
    members, place = {}, 0
    while place + _TAR_BLOCK <= file.size:
        header = file.content(place, _TAR_BLOCK)
        if not header.strip(b"\0"):
            break
        length, checksum = (header[start:end].strip(b" \0") for start, end in ((124, 136), (148, 156)))
        if not (length.isdigit() and checksum.isdigit() and (length + checksum).translate(None, b"89") == length + checksum) \
                or int(checksum, 8) != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
            raise InputError(f"is a damaged tar: the header at byte {place} is wrong")
        if header[156:157] in (b"0", b"\0"):
            members[PurePosixPath(header[:100].rstrip(b"\0").decode("latin-1")).name] = place + _TAR_BLOCK
        place += _TAR_BLOCK * (1 - -int(length, 8) // _TAR_BLOCK)
    return members


def _three(value: Any, place: int) -> tuple[tuple, int]:
    if type(value) is not tuple or len(value) != 3:
        raise InputError(f"describes a storage or tensor by {shown(value)}; wanted three entries")
    return value, place


def _whole(value: Any, *, most: float = math.inf) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise InputError(f"has {shown(value)} where a whole number belongs")
    return value
