"""Reads files that others made: never an endless one, and json only where it means one thing."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from dataset.foreign_values import shown, told_with
from object_detection.errors import InputError

LARGEST_FILE_BYTES = 2**30  # of an image or an XML file: a record holds less than 2 GiB
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)


def read_regular_file(path: str | os.PathLike) -> bytes:
    """The content of a regular file of at most `LARGEST_FILE_BYTES`.

    What the path leads to is judged before it is opened: opening a pipe waits for a writer, reading a device need not
    end. Raises OSError, with `strerror` as the reason.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no regular file')}", str(path))
    if found.st_size > LARGEST_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is of {found.st_size} bytes; the limit is {LARGEST_FILE_BYTES}", str(path))
    with open(path, "rb") as file:
        return file.read(LARGEST_FILE_BYTES)


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
        raise InputError(f"{path}: is nested too deeply to be read") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not json ({len(content)} bytes; {error})") from error
    except ValueError as error:  # Python's own limit
        raise InputError(f"{path}: holds a whole number of thousands of digits") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if value != found[key]:
                raise InputError(f"an object with id {shown(found.get('id'))} gives {shown(key)} twice, as {shown(value)} "
                                 f"and as {shown(found[key])}")
    return found
