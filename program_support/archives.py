"""Read zip and tar archives: what they hold and under which names, with one line for a damaged one."""

import contextlib
import hashlib
import lzma
import os
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from program_support.errors import InputError

_ZIP_START = b"PK\x03\x04"
_MACOS_PREFIX = "__MACOSX/"  # prefix of macOS metadata entries in a zip archive
_UTF8_FLAG = 0x800
_ERRORS = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,  # an encrypted archive
    OSError,
    ValueError,  # a name that is not in the declared encoding, or is outside the archive
    OverflowError,
    IndexError,
)


def archive_kind(path: str | os.PathLike[str]) -> str | None:
    """Return "zip" or "tar" for an archive, also for a damaged zip, or None. Pipes and devices are not opened."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            start = file.read(len(_ZIP_START))
        if start == _ZIP_START or zipfile.is_zipfile(path):
            return "zip"
        return "tar" if tarfile.is_tarfile(path) else None
    except _ERRORS:
        return None


def archive_digest(path: str) -> bytes:
    """Return a digest of the names and contents in an archive.

    Raises:
        InputError: for a damaged one.
    """
    with _reading(path):
        if archive_kind(path) == "tar":
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        with zipfile.ZipFile(path) as files:
            return repr([(member.filename, member.CRC) for member in files.infolist()]).encode()


def extract_archive(path: str, folder: Path, *, target: Path) -> None:
    """Extract an archive into a new folder; `target` is its final name, for messages.

    Raises:
        InputError: one line, for an archive that is damaged, encrypted, larger than the disk, or that would write
            outside the folder.
    """
    with _reading(path, into=f" into {target}"):
        if archive_kind(path) == "tar":
            with tarfile.open(path) as tar:
                entries = tar.getmembers()
                _require_space(path, sum(entry.size for entry in entries), folder, target=target)
                for entry in entries:
                    entry.name = _decoded(os.fsencode(entry.name))
                tar.extractall(folder, entries, filter="data")
        else:
            with zipfile.ZipFile(path) as files:
                members = [member for member in files.infolist() if not member.filename.startswith(_MACOS_PREFIX)]
                _require_space(path, sum(member.file_size for member in members), folder, target=target)
                for member in members:
                    member.filename = _name_in_zip(member)
                files.extractall(folder, members)


@contextlib.contextmanager
def _reading(path: str, *, into: str = "") -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except _ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: cannot be unpacked{into} ({reason})") from error


def _require_space(path: str, needed: int, folder: Path, *, target: Path) -> None:
    """Create the folder unless its disk has too little space."""
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise InputError(f"{path}: unpacks to {needed:,} bytes; {target.parent} has {free:,} bytes free")
    folder.mkdir()


def _name_in_zip(member: zipfile.ZipInfo) -> str:
    """Return the name of a member. Linux zip and Finder write UTF-8 without its flag, which Python reads as cp437."""
    name = member.filename
    if not member.flag_bits & _UTF8_FLAG:
        with contextlib.suppress(UnicodeError):
            name = member.orig_filename.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")  # older Windows programs wrote backslashes


def _decoded(name: bytes) -> str:
    """Return the text of a file name in UTF-8, else in cp437, in which every byte is a character."""
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return name.decode("cp437")
