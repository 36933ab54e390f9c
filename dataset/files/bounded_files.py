"""Reads files that others made: never an endless one, and json only where it means one thing."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from dataset.files.untrusted_values import shown, told_with
from program_support.errors import InputError

LARGEST_FILE_BYTES = 2**30  # of an image or an XML file: a record holds less than 2 GiB
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of a regular file of at most `LARGEST_FILE_BYTES`.

    Raises OSError, with `strerror` as the reason, also for a pipe, for whose writer one would wait, and a device, which need
    not end.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has {size} bytes; the limit is {LARGEST_FILE_BYTES}", str(path))
        return file.read(LARGEST_FILE_BYTES)


def open_regular_file(path: str | os.PathLike) -> BinaryIO:
    """Open a file for reading; judged before, as some devices act upon being opened, and after. Raises OSError."""
    if "\0" in os.fsdecode(path):  # of which Python raises a ValueError
        raise FileNotFoundError(errno.ENOENT, "the file name contains NUL", str(path))
    _check_kind(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # nor is a pipe waited for that has taken its place
    try:
        _check_kind(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def _check_kind(found: os.stat_result, path: str | os.PathLike) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file')}", str(path))


def read_json(path: str, *, hasher: Any = None) -> Any:
    """The content of a json file in UTF-8, its bytes fed to `hasher`; a pipe will do (`<(zcat a.json.gz)`).

    Raises InputError, naming the file, where it cannot be read, is not json, or gives a key twice with two values:
    json would let one of them vanish.
    """
    try:
        if stat.S_IFMT(os.stat(path).st_mode) in _DEVICES:
            raise OSError(errno.EINVAL, "it is a device", path)
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if hasher is not None:
        hasher.update(content)
    try:
        with told_with(f"{path}:"):
            return json.loads(content.decode("utf-8-sig"), object_pairs_hook=_distinct)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply to parse") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not json ({len(content)} bytes; {error})") from error
    except ValueError as error:  # Python's own limit
        raise InputError(f"{path}: contains an integer with thousands of digits") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if value != found[key]:
                raise InputError(f"an object with id {shown(found.get('id'))} gives {shown(key)} twice, as {shown(value)} "
                                 f"and as {shown(found[key])}")
    return found
