"""Atomic writing of files, removal of what killed processes leave behind, and the user's cache folder.

An unfinished file lies in its final folder, under a hidden name that contains the process and the host that write it.
Killed processes cannot remove theirs, so the next process that writes into the folder does.
"""

import contextlib
import errno
import hashlib
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from program_support.errors import InputError

HOST = re.sub(r"[^A-Za-z0-9-]", "-", platform.node()) or "host"  # in names of unfinished files
_UNFINISHED = re.compile(r"\..+\.(?P<host>[A-Za-z0-9-]+)\.(?P<process>\d{1,9})\.unfinished")
_LONG_NAME = 128  # bytes; a file system allows 255, including the additions here
_SECONDS_UNTIL_ABANDONED = 3600.0  # a running process of another host writes more often than this
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EBADF}  # some network and FUSE mounts


@contextlib.contextmanager
def report_write_errors(path: str | Path) -> Iterator[None]:
    """Raise an OSError of the block, such as a full disk, as an InputError with the path of the file."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def unfinished_path(path: str | Path) -> Path:
    """Return the path under which this process writes the unfinished `path`."""
    path = Path(path)
    name = path.name
    if len(os.fsencode(name)) > _LONG_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}.{HOST}.{os.getpid()}.unfinished")


def write_text(path: str | Path, text: str) -> None:
    r"""Write a UTF-8 file durably (it survives a power failure), replacing an existing one atomically. Raises OSError.

    Undecodable bytes of a path, which UTF-8 cannot represent, become \udcXX as in JSON.
    """
    write_bytes(path, text.encode("utf-8", errors="backslashreplace"), flush=True)


def write_texts(folder: str | Path, texts: Mapping[str, str]) -> None:
    """Write texts by file name as `write_text` does, into a folder that is created if necessary.

    Raises:
        InputError: with the path of the file.
    """
    for name, text in texts.items():
        with report_write_errors(path := Path(folder, name)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)


def write_bytes(path: str | Path, content: bytes, *, flush: bool = False) -> None:
    """Write a file that appears complete or not at all; `flush`: it also survives a power failure.

    Raises:
        OSError: the file cannot be written.
    """
    unfinished = unfinished_path(path)
    try:
        unfinished.write_bytes(content)
        if flush:
            flush_to_disk(unfinished)
        os.replace(unfinished, path)
    except OSError as error:
        error.filename = str(path)  # a write to a full disk raises an error without a file name
        raise
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def unfinished_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder beside `path` for files that are renamed out of it once complete; remove it at the end.

    Leftovers of terminated processes are removed first.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = unfinished_path(path)
    shutil.rmtree(folder, ignore_errors=True)  # left by a process of the same id before a restart
    folder.mkdir(parents=True)
    try:
        _remove_abandoned(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Create a hard link, or a copy if the file system has no hard links.

    Raises:
        OSError: neither is possible.
    """
    try:
        os.link(source, target)
    except OSError:  # EPERM, ENOTSUP, EXDEV, EMLINK, ...: mounts differ in the error
        shutil.copyfile(source, target)
        flush_to_disk(target)


def flush_to_disk(path: str | Path) -> None:
    """Flush a file, or the names in a folder, so that they survive a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    """Remove leftovers of terminated processes, as far as permissions allow."""
    for path in target.parent.glob(".*"):
        match = _UNFINISHED.fullmatch(path.name)
        if path == target or not match:
            continue
        with contextlib.suppress(OSError):
            process = int(match["process"]) if match["host"] == HOST else None  # known on this host only
            abandoned = _is_old(path, beside=target) if process is None else not is_other_process(process)
            if abandoned and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif abandoned:
                path.unlink(missing_ok=True)


def is_other_process(number: int) -> bool:
    """Return whether another process with this id exists on this host; this process does not write anything else."""
    if number == os.getpid():
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _is_old(folder: Path, *, beside: Path) -> bool:
    """Return whether a file is old by the clock of the file system, because the clocks of hosts may differ."""
    touched = max(path.stat().st_mtime for path in (folder, *(folder.iterdir() if folder.is_dir() else ())))
    with tempfile.TemporaryFile(dir=beside) as now:
        return os.fstat(now.fileno()).st_mtime - touched > _SECONDS_UNTIL_ABANDONED


def user_cache(name: str, *, variable: str = "") -> Path:
    """Return the folder that an environment variable holds, else efficientdet/NAME in $XDG_CACHE_HOME or ~/.cache."""
    if folder := os.environ.get(variable):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / name
