"""Read files of torch.save as named arrays, without PyTorch, in each of its three layouts.

- zip (since 1.6): `NAME/data.pkl`, a pickle whose storages are the members `NAME/data/KEY`;
- consecutive pickles (0.1.10 to 1.5): a magic number, a version, the machine, the object, the keys of the storages;
  then each storage as a count and its numbers;
- tar (before 0.1.10; torchvision's oldest files): `storages`: their number; for each (key, place, type), a count and
  its numbers; then the storages that are views of others. `tensors`: their number; for each (key, key of the storage,
  type), the rank, shape, strides, offset. `pickle`: the object, whose tensors are persistent ids.

Files are untrusted: every offset and length is compared with the file's size before anything is read or allocated.
"""

import math
import os
import re
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any

import numpy as np

from dataset.files.bounded_files import open_regular_file
from dataset.files.untrusted_values import error_context, shown
from efficientdet.plugins.torch_weights.torch_pickle import (
    LARGEST_PICKLE,
    LARGEST_SMALL_PICKLE,
    ONLY_TENSORS,
    BoundedFile,
    Placeholder,
    Storage,
    StorageKind,
    Tensor,
    read_pickle,
    read_pickle_at,
    tensor,
)
from program_support.errors import InputError

SUFFIXES = (".pth", ".pth.tar", ".pt")
_ZIP = b"PK\x03\x04"
_TAR_OFFSET, _TAR = 257, b"ustar"
_MAGIC = 0x1950A86A20F9469CFC6C
_VERSION = 1001
_MAGIC_PICKLED = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # two bytes of the protocol precede it
_HEAD = 512  # bytes that determine the layout
# Keys under which training programs put the weights, those of a moving average first
_WRAPPERS = ("state_dict_ema", "model_ema", "model", "state_dict", "model_state_dict")
# Modules around the network: of data parallel and averaged models, torch.compile, Lightning and effdet's benches
_AROUND = re.compile(r"(?:(?:module|_orig_mod|model)\.)*")
# Beside it: a number in torch.optim.swa_utils.AveragedModel, and the boxes of effdet's benches
_BESIDE_MODULE = ("n_averaged", "anchors.boxes")
_MOST_MEMBERS = 100  # torch wrote four
_MOST_OF_A_KIND = 100_000  # storages or tensors; a ResNet-152 has 932
_ZIP_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error)


def read(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the tensors of a file of torch.save with PyTorch's names and layout; bfloat16 as float32.

    Of a dictionary with a key `state_dict_ema`, `model_ema`, `model`, `state_dict` or `model_state_dict`, only the
    first such entry is used, and other entries may be objects of any class. Prefixes `module.`, `_orig_mod.` and
    `model.` of all names are removed.
    The arrays are read-only; tensors that share memory in the file share it.

    Raises:
        InputError: naming the file, if it is damaged or has anything but tensors of numbers as weights.
    """
    with error_context(f"{path}:"):
        try:
            with open_regular_file(path) as stream:
                return _arrays(_read_object(BoundedFile(stream)))
        except OSError as error:
            raise InputError(f"cannot be read ({error.strerror or error})") from error


def architecture(path: str | os.PathLike) -> str:
    """Return the text that timm's training programs store under `arch` beside the weights; "" if there is none.

    Raises:
        InputError: as `read`.
    """
    with error_context(f"{path}:"), open_regular_file(path) as stream:
        saved = _read_object(BoundedFile(stream))
    stated = saved.get("arch") if isinstance(saved, Mapping) else None
    return stated if isinstance(stated, str) else ""


def recognizes(head: bytes) -> bool:
    """Return whether a file with these first bytes may be a PyTorch file."""
    return _is_zip(head) or _is_pickles(head) or _is_tar(head)


def _is_zip(head: bytes) -> bool:
    return head.startswith(_ZIP)


def _is_pickles(head: bytes) -> bool:
    return _MAGIC_PICKLED in head[:16]


def _is_tar(head: bytes) -> bool:
    return head[_TAR_OFFSET:].startswith(_TAR)


def _read_object(file: BoundedFile) -> Any:
    """Return the saved object; the storages of its tensors are read later."""
    head = file.content(0, min(file.size, _HEAD))
    for is_layout, read in ((_is_zip, _from_zip), (_is_pickles, _from_pickles), (_is_tar, _from_tar)):
        if is_layout(head):
            return read(file)
    raise InputError(f"begins with {shown(head[:16])}, unlike any PyTorch file")


def _from_zip(file: BoundedFile) -> Any:
    try:
        archive = zipfile.ZipFile(file.stream)
        members = {member.filename: member for member in archive.infolist()}
        if any(name.endswith("/constants.pkl") for name in members):
            raise InputError(f"is a TorchScript program; {ONLY_TENSORS}")
        _check_members(archive.infolist(), file.size)
    except InputError:
        raise
    except _ZIP_DAMAGE as error:
        raise InputError(f"is a damaged zip ({shown(str(error))})") from error
    folders = [name.removesuffix("/data.pkl") for name in members if name.endswith("/data.pkl")]
    if len(folders) != 1:
        raise InputError(f"is a zip of {shown(list(members))} with {len(folders)} data.pkl; {ONLY_TENSORS}")
    folder = folders[0]

    def content(name: str) -> bytes:
        try:
            return archive.read(f"{folder}/{name}")
        except (*_ZIP_DAMAGE, KeyError, EOFError) as error:
            raise InputError(f"its member {shown(name)} is damaged ({shown(str(error))})") from error

    order = content("byteorder") if f"{folder}/byteorder" in members else b"little"
    if order not in (b"little", b"big"):
        raise InputError(f"has the byte order {shown(order)}; expected little or big")
    if members[f"{folder}/data.pkl"].file_size > LARGEST_PICKLE:
        raise InputError(f"its pickle has more than {LARGEST_PICKLE} bytes; {ONLY_TENSORS}")
    storages: dict[str, Storage] = {}

    def persistent(identity: Any) -> Storage:
        key, storage = _storage_of(identity, storages)
        if storage.read is None:
            member = members.get(f"{folder}/data/{key}")
            expected = storage.count * storage.kind.width
            if member is None or member.file_size != expected:
                problem = f"has {member.file_size} bytes" if member else "is missing"
                raise InputError(f"its member {shown(f'data/{key}')} {problem}; expected {expected} bytes")
            storage.big_endian = order == b"big"
            storage.read = lambda: content(f"data/{key}")
        return storage

    return read_pickle(content("data.pkl"), persistent)[0]


def _check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """Raise InputError for compressed members, which torch.save does not write, or overlapping members."""
    for member in members:
        is_stored = member.compress_type == zipfile.ZIP_STORED and member.file_size == member.compress_size
        if not is_stored or member.flag_bits & 1:
            raise InputError(
                f"its member {shown(member.filename)} is compressed or encrypted, unlike those of torch.save"
            )
    names = {member.filename for member in members}
    if sum(member.file_size for member in members) > size or len(names) < len(members):
        raise InputError("is a zip whose members overlap or have the same name")


def _storage_of(identity: Any, storages: dict[str, Storage]) -> tuple[str, Storage]:
    """Return key and storage of a persistent id; equal keys share a storage."""
    is_storage = type(identity) is tuple and len(identity) in (5, 6) and identity[0] == "storage"
    if not is_storage or identity[5:] not in ((), (None,)):  # otherwise a view of another storage, as in old versions
        raise InputError(f"has the persistent id {shown(identity)}; {ONLY_TENSORS}")
    _, kind, key, _, count, *_ = identity
    _refuse_placeholder(kind)
    if type(kind) is not StorageKind or type(key) is not str or type(count) is not int or count < 0:
        raise InputError(f"has a storage {shown(identity)}; expected its type, a text key and a count")
    storage = storages.setdefault(key, Storage(kind, count))
    if (storage.kind, storage.count) != (kind, count):
        raise InputError(f"has two storages with the key {shown(key)}")
    return key, storage


def _from_pickles(file: BoundedFile) -> Any:
    storages: dict[str, Storage] = {}
    magic, place = read_pickle_at(file, 0, LARGEST_SMALL_PICKLE)
    version, place = read_pickle_at(file, place, LARGEST_SMALL_PICKLE)
    if (magic, version) != (_MAGIC, _VERSION):
        raise InputError(f"has version {shown(version)} of PyTorch's pickles; expected {_VERSION}")
    _, place = read_pickle_at(file, place, LARGEST_SMALL_PICKLE)  # the machine: numbers are always little-endian
    saved, place = read_pickle_at(file, place, LARGEST_PICKLE, lambda identity: _storage_of(identity, storages)[1])
    _refuse_placeholder(saved)
    keys, place = read_pickle_at(file, place, LARGEST_PICKLE)
    if type(keys) is not list or not all(type(key) is str for key in keys) or sorted(keys) != sorted(storages):
        raise InputError(f"names the storages {shown(keys)}; its tensors are of {shown(sorted(storages))}")
    for key in keys:
        place = storages[key].end_in(file, place)
    return saved


def _from_tar(file: BoundedFile) -> Any:
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


def _refuse_placeholder(value: Any, where: str = "") -> None:
    if isinstance(value, Placeholder):
        is_of_ultralytics = repr(value).startswith("ultralytics.")
        expected = "the networks of ultralytics are none of this project's" if is_of_ultralytics else ONLY_TENSORS
        raise InputError(f"{where}refers to {value!r}; {expected}")


def _arrays(saved: Any) -> dict[str, np.ndarray]:
    if isinstance(saved, Mapping):
        present = [key for key in _WRAPPERS if isinstance(saved.get(key), Mapping | Placeholder)]
        present.sort(key=lambda key: isinstance(saved[key], Placeholder))
        if present:
            _refuse_placeholder(saved[present[0]], f"its entry {shown(present[0])} ")
            saved = saved[present[0]]
    _refuse_placeholder(saved)
    if not isinstance(saved, Mapping) or not saved:
        raise InputError(f"holds {'nothing' if saved == {} else f'a {type(saved).__name__}'}; {ONLY_TENSORS}")
    for name, value in saved.items():
        _refuse_placeholder(value, f"its entry {shown(name)} ")
        if type(name) is not str or not isinstance(value, Tensor):
            raise InputError(f"its entry {shown(name)} is a {type(value).__name__}; {ONLY_TENSORS}")
    names = [name for name in saved if name not in _BESIDE_MODULE]
    around = min((match[0] for name in names if (match := _AROUND.match(name))), key=len, default="")
    length = len(around) if all(name.startswith(around) for name in names) else 0
    return {name[length:]: saved[name].array() for name in (names if length else saved)}


READER = SimpleNamespace(SUFFIXES=SUFFIXES, recognizes=recognizes, read=read, architecture=architecture)
