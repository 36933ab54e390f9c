"""Read untrusted files: with a size limit, JSON only without duplicate keys, and tables of any separator."""

import base64
import codecs
import csv
import errno
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from dataset.files.untrusted_values import error_context, shown
from program_support.errors import InputError
from program_support.remote_addresses import is_remote, storage

_LONGEST_LINE_BYTES = 1 << 16


def csv_rows(
    path: str, *, separator: str = ",", taken: Callable[[bytes], None] = lambda line: None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and fields of each non-empty row of a CSV file; every line is passed to `taken`.

    Raises:
        InputError: with file and line, if the file cannot be read or is not CSV.
    """
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        while line := file.readline(_LONGEST_LINE_BYTES):
            number += 1
            if len(line) == _LONGEST_LINE_BYTES:
                raise InputError(
                    f"{path}: line {number} has more than {_LONGEST_LINE_BYTES} bytes: not a CSV file of boxes"
                )
            taken(line)
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield "" if number == 1 and is_separator_line(text) else text

    with file_errors(path):
        try:
            with _open_as_utf_8(path) as file:
                for row in csv.reader(lines(), strict=True, delimiter=separator):
                    if row:
                        yield number, row
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: line {number} {NOT_UTF_8}") from error
        except csv.Error as error:
            raise InputError(f"{path}: line {number} is not a CSV row ({error})") from error


def is_separator_line(line: str) -> bool:
    """Return whether this is Excel's first line, which says how the fields are separated."""
    return re.fullmatch(r"\s*\"?sep=.\"?\s*", line, re.IGNORECASE) is not None


def _open_as_utf_8(path: str) -> BinaryIO:
    """Open a file; one with the byte order mark of UTF-16 or UTF-32 is converted in memory."""
    file = open_regular_file(path)
    start = file.read(4)
    file.seek(0)
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or start == codecs.BOM_UTF32_BE:
        with file:
            return io.BytesIO(decoded_text(file.read(LARGEST_FILE_BYTES)).encode())
    return file


LARGEST_FILE_BYTES = 2**30  # limit of an image or an XML file: a record holds less than 2 GiB
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_BYTE_ORDER_MARKS = {  # those of UTF-32 come first because they begin with those of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
NOT_UTF_8 = "is not UTF-8 text, perhaps of a Windows code page; save it as UTF-8"
_DEVICES = (stat.S_IFCHR, stat.S_IFBLK)
NOT_FETCHED = "a pointer of Git LFS; `git lfs pull` fetches the file"
_POINTER = b"version https://git-lfs.github.com/spec/"  # https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md


@contextmanager
def file_errors(path: object) -> Iterator[None]:
    """Convert an OSError in the block, or text that is not UTF-8, to an InputError with the file name."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: {NOT_UTF_8}") from error


class FileNotFetched(OSError):
    """Git LFS has left a pointer in the place of the file."""


def read_regular_file(path: str | os.PathLike) -> bytes:
    """Return the content of a regular file of at most `LARGEST_FILE_BYTES`.

    Raises:
        OSError: with `strerror` as the reason; also for pipes, which could block, and devices, which could be
            endless.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has {size} bytes; the limit is {LARGEST_FILE_BYTES}", str(path))
        return file.read(LARGEST_FILE_BYTES)


def read_image_file(path: str | os.PathLike) -> bytes:
    """Return the content of an encoded image as `open_image_file` opens it.

    Raises:
        OSError: the file cannot be read.
    """
    if not (os.fsdecode(path).endswith(".json") or is_remote(path)):
        return read_regular_file(path)
    with open_image_file(path) as file:
        return file.read()


def open_regular_file(path: str | os.PathLike) -> BinaryIO:
    """Open a regular file for reading.

    The type is checked before opening, as opening has side effects for some devices, and again afterwards.

    Raises:
        OSError: the file cannot be read, or is not fetched.
    """
    if "\0" in os.fsdecode(path):  # Python would raise a ValueError
        raise FileNotFoundError(errno.ENOENT, "the file name contains NUL", str(path))
    _check_kind(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not block if a pipe has replaced the file
    try:
        _check_kind(os.fstat(descriptor), path)
        _check_fetched(os.pread(descriptor, len(_POINTER), 0), path)
    except OSError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def _check_fetched(head: bytes, path: str | os.PathLike) -> None:
    if head.startswith(_POINTER):
        raise FileNotFetched(errno.EINVAL, f"it is {NOT_FETCHED}", str(path))


def open_image_file(path: str | os.PathLike) -> BinaryIO:
    """Open an encoded image: a regular file, or the `imageData` of a labelme JSON file.

    Raises:
        OSError: the file cannot be read.
        InputError: neither can a remote one.
    """
    if is_remote(path):
        content = storage().read(path)
        if len(content) > LARGEST_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {LARGEST_FILE_BYTES} bytes", str(path))
        return io.BytesIO(content)
    file = open_regular_file(path)
    if not os.fsdecode(path).endswith(".json"):
        return file
    with file:
        return io.BytesIO(base64.b64decode(json.load(file)["imageData"]))  # checked by the reader of the format


def decoded_text(content: bytes) -> str:
    """Decode UTF-16 or UTF-32 by its byte order mark, else UTF-8.

    Raises:
        UnicodeDecodeError: the text is not in that encoding.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding)
    return content.decode("utf-8-sig")


def read_text_file(path: str | os.PathLike) -> tuple[str, bytes]:
    """Return the text of a regular file (UTF-8, or UTF-16 with a byte order mark) and its bytes.

    Raises:
        InputError: the file cannot be read.
    """
    with file_errors(path):
        content = read_regular_file(path)
        return decoded_text(content), content


def _check_kind(status: os.stat_result, path: str | os.PathLike) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'no regular file')}", str(path))


def read_json(path: str, *, hasher: Any = None) -> Any:
    """Return the content of a JSON file; its bytes are passed to `hasher`. Pipes are allowed (`<(zcat a.json.gz)`).

    Raises:
        InputError: with the file name if it cannot be read, is not JSON, or has a key twice with different values,
            of which Python's json would drop one.
    """
    with file_errors(path):
        if stat.S_IFMT(os.stat(path).st_mode) in _DEVICES:
            raise OSError(errno.EINVAL, "it is a device", path)
        content = Path(path).read_bytes()
        _check_fetched(content, path)
        text = content.decode(json.detect_encoding(content))
    if hasher is not None:
        hasher.update(content)
    try:
        with error_context(f"{path}:"):
            return json.loads(text, object_pairs_hook=_distinct)
    except InputError:
        raise
    except RecursionError as error:
        raise InputError(f"{path}: is nested too deeply to parse") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: is not json ({len(content)} bytes; {error})") from error
    except ValueError as error:  # Python's own limit
        raise InputError(f"{path}: contains an integer with thousands of digits") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        for key, value in pairs:
            if value != mapping[key]:
                raise InputError(
                    f"an object with id {shown(mapping.get('id'))} gives {shown(key)} twice, as {shown(value)} "
                    f"and as {shown(mapping[key])}"
                )
    return mapping
