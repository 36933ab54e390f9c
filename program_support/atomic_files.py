"""Files that appear whole or not at all, and the end of what killed processes leave of them.

What is unfinished lies in the folder where it will stand, under a hidden name that says which process on which host
writes it. Killed processes cannot remove theirs: whoever writes into the folder next does.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from program_support.errors import InputError

_HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "host"
_UNFINISHED = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<process>\d{1,9})\.unfinished")
_OF_MACOS = "__MACOSX/"  # in a zip archive a second entry for each file, which is none
_LONG_NAME = 128  # bytes; a file system takes 255, with what is put around it
_SECONDS_UNTIL_ABANDONED = 3600.0  # no process of another host leaves what it writes untouched for so long
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # some network and FUSE mounts


@contextlib.contextmanager
def telling_write_errors(path: str | Path) -> Iterator[None]:
    """Raise an OSError of the block, such as a full disk, as an InputError that names the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def unfinished_path(path: str | Path) -> Path:
    """Where this process writes what is to become `path`."""
    path = Path(path)
    name = path.name
    if len(os.fsencode(name)) > _LONG_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}.{_HOST}.{os.getpid()}.unfinished")


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 file that outlives a power cut; what stood there before is replaced at once. Raises OSError.

    Undecodable bytes of a path, which UTF-8 cannot hold, become \\udcXX as in json.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"), flush=True)


def write_bytes(path: str | Path, content: bytes, *, flush: bool = False) -> None:
    """Write a file that appears whole or not at all; with `flush` it outlives a power cut, too. Raises OSError."""
    unfinished = unfinished_path(path)
    try:
        unfinished.write_bytes(content)
        if flush:
            flush_to_disk(unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        error.filename = str(path)  # a full disk is met by a write, which knows no name
        raise
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def unfinished_folder(path: str | Path, *, also: re.Pattern | None = None) -> Iterator[Path]:
    """A folder beside `path` for files that are renamed out of it when they are whole; it is removed at the end.

    Removes what processes that are gone left in the place, and files that match `also` and no one has touched for an hour.
    Raises OSError where the folder cannot be made.
    """
    folder = unfinished_path(path)
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier process with our number, as in a container that started again
    folder.mkdir(parents=True)
    try:
        _remove_abandoned(folder, also=also)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """A second name of a file, or a copy where the file system has no hard links. Raises OSError where neither is possible."""
    try:
        os.link(source, target)
    except OSError:  # EPERM, ENOTSUP, EXDEV, EMLINK, ...: mounts differ in what they say
        shutil.copyfile(source, target)
        flush_to_disk(target)


def flush_to_disk(path: str | Path) -> None:
    """Return when a file, or the names in a folder, would outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(handle)


def _remove_abandoned(own: Path, *, also: re.Pattern | None) -> None:
    """Best effort: what belongs to a user else stays where it may not be removed."""
    for found in own.parent.glob(".*"):
        match = _UNFINISHED.fullmatch(found.name)
        if found == own or not (match or (also and also.fullmatch(found.name))):
            continue
        with contextlib.suppress(OSError):
            on_this_host = match and match["host"] == _HOST
            abandoned = not _is_other_process(int(match["process"])) if on_this_host else _is_old(found, beside=own)
            if abandoned and found.is_dir():
                shutil.rmtree(found, ignore_errors=True)
            elif abandoned:
                found.unlink(missing_ok=True)


def _is_other_process(number: int) -> bool:
    """Whether a process of this number lives on this host, this one not counted: it is not writing anything else."""
    if number == os.getpid():
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _is_old(found: Path, *, beside: Path) -> bool:
    """By the clock of the file system, which hosts share: their own may differ."""
    touched = max(path.stat().st_mtime for path in (found, *(found.iterdir() if found.is_dir() else ())))
    with tempfile.TemporaryFile(dir=beside) as now:
        return os.fstat(now.fileno()).st_mtime - touched > _SECONDS_UNTIL_ABANDONED


def unpacked_zip(archive: str, folder: Path) -> str:
    """Unpack a zip archive into a folder that appears complete or not at all, and return the folder.

    Raises InputError, one line, for an archive that cannot be unpacked or is larger than the disk.
    """
    try:
        with ZipFile(archive) as files, unfinished_folder(folder) as unfinished:
            members = [member for member in files.infolist() if not member.filename.startswith(_OF_MACOS)]
            needed, free = sum(member.file_size for member in members), shutil.disk_usage(unfinished).free
            if needed > free:
                raise InputError(f"{archive}: unpacks to {needed:,} bytes; {folder.parent} has {free:,} bytes free")
            files.extractall(unfinished, members)
            shutil.rmtree(folder, ignore_errors=True)  # of a call that was killed before it noted this step
            os.rename(unfinished, folder)
    except (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise InputError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    return str(folder)
