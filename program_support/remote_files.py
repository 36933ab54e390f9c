"""Files at addresses such as s3://BUCKET/FOLDER/FILE, copied with fsspec into a folder of this machine.

A copy gets its name when it is complete. Beside it is a hidden file with what the listing said about the original:
size, checksum or time, so that a changed original is copied again and an unchanged one is not. Processes of a machine
that need the same folder copy it once: the others wait for a lock, which the kernel releases if its holder dies.
"""

import contextlib
import errno
import fnmatch
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from program_support.atomic_files import unfinished_path, write_text
from program_support.errors import InputError
from program_support.file_lock import lock_file
from program_support.progress import Progress

Log = Callable[[str], None]
_INSTALL = {  # scheme -> how to install the package that fsspec needs for it
    "az": "pip install adlfs",
    "gs": "pip install gcsfs",
    "hf": "pip install -e '.[hub]'",
    "memory": "pip install fsspec",
    "s3": "pip install -e '.[remote]'",
}
# In seconds, by botocore's names. s3fs itself makes five attempts
_TIMEOUTS = {"connect_timeout": 5, "read_timeout": 15, "retries": {"total_max_attempts": 1}}
_OPTIONS: dict[str, dict[str, Any]] = {"s3": {"config_kwargs": _TIMEOUTS}}
_IDENTITY = (
    "ETag",
    "etag",
    "md5Hash",
    "content_md5",
    "crc32c",
    "blob_id",
    "LastModified",
    "updated",
    "created",
    "mtime",
)
_CREDENTIALS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
_COPIES = 8  # files copied in parallel, to hide the latency of a request
_NAMES_SHOWN = 5
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is an address that this module reads: az://, gs://, hf://, memory:// or s3://."""
    scheme, mark, _ = os.fspath(path).partition("://")
    return bool(mark) and scheme in _INSTALL


def cache_folder() -> Path:
    """Return $EFFICIENTDET_REMOTE_CACHE, else efficientdet/remote in $XDG_CACHE_HOME, else in ~/.cache."""
    if folder := os.environ.get("EFFICIENTDET_REMOTE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "efficientdet" / "remote"


def print_line(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def local_copies(pattern: str, *, beside: Collection[str] = (), log: Log = print_line) -> list[str]:
    """Return the paths of local copies of the files that match a remote pattern, sorted; copy what is new or changed.

    Args:
        pattern: address of a folder, and a name or a glob pattern of names in it.
        beside: suffixes of other files of the folder that are copied, too; copies without an original are removed.
        log: function that logs a line.

    Raises:
        InputError: nothing matches, the files cannot be read, or the copies cannot be stored.
    """
    with remote_errors(pattern):
        system, path = _opened(pattern)
        folder, _, name = path.rpartition("/")
        if not folder or not name:
            raise InputError(f"{pattern}: expected a pattern of files in a folder or bucket, such as {pattern}/train-*")
        files = {_name(info): info for info in system.ls(folder, detail=True) if info["type"] == "file"}
        matching = {each for each in files if each == name or fnmatch.fnmatchcase(each, name)}
        if not matching:
            raise InputError(f"{pattern}: no file matches; {_contents(system, path, files)}")
    chosen = {each: files[each] for each in files if each in matching or each.endswith(tuple(beside))}
    local = _local_folder(pattern, folder)
    with _stored(local), _sole_copier(local, log=log):
        for old in local.iterdir():
            if old.name not in files and old.name.endswith(tuple(beside)) and not old.name.startswith("."):
                old.unlink()
        _copy(system, chosen, local, address=pattern, log=log)
    return sorted(str(local / each) for each in matching)


@contextlib.contextmanager
def remote_errors(address: str) -> Iterator[None]:
    """Raise an error of fsspec or of a client of it in the block as an InputError with the address.

    Raises:
        OSError: the disk of this machine is full.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # each client has its own classes
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:  # of the copy
            raise
        raise InputError(f"{address}: {_problem(error, address.partition('://')[0])}") from error


def _problem(error: Exception, scheme: str) -> str:
    reason = (str(error) or type(error).__name__).partition("\n")[0][:200]
    if isinstance(error, ImportError):
        return f"needs a package that is not installed ({reason}): {_INSTALL[scheme]}"
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket, folder or file ({reason})"
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "NoCredentials"):
        return f"access denied ({reason}); expected credentials with permission: {_CREDENTIALS.get(scheme, scheme)}"
    return f"cannot be read ({reason}); check the network and the address of the server"


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address, **_OPTIONS.get(address.partition("://")[0], {}))
    system.invalidate_cache()  # a listing of this process may be old
    return system, str(path)


def _name(info: Mapping[str, Any]) -> str:
    return PurePosixPath(info["name"]).name


def _contents(system: Any, path: str, files: Collection[str]) -> str:
    """Return what is there instead of the file that a path names."""
    if "*" not in path and system.isdir(path):
        return f"it is a folder, which holds {_shown(_name(info) for info in system.ls(path, detail=True))}"
    return f"the folder holds {_shown(files) or 'no files'}"


def _shown(names: Any) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _local_folder(address: str, folder: str) -> Path:
    """Return the folder of the cache for a remote folder."""
    parts = folder.strip("/").split("/")
    if ".." in parts:
        raise InputError(f"{address}: expected an address without '..'")
    return cache_folder().joinpath(address.partition("://")[0], *parts)


@contextlib.contextmanager
def _stored(folder: Path) -> Iterator[None]:
    """Create a folder of the cache; raise an OSError of the block as an InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(
            f"{folder}: copies cannot be stored there ({error.strerror or error}); set EFFICIENTDET_REMOTE_CACHE to "
            "another folder"
        ) from error


@contextlib.contextmanager
def _sole_copier(folder: Path, *, log: Log) -> Iterator[None]:
    with open(folder / ".lock", "a") as lock:
        try:
            lock_file(lock)
        except BlockingIOError:
            log(f"waiting for the process that copies to {folder}")
            lock_file(lock, wait=True)
        yield


def _copy(system: Any, files: Mapping[str, Mapping[str, Any]], folder: Path, *, address: str, log: Log) -> None:
    """Copy the files of which the folder has no copy, or one of another version.

    Raises:
        InputError: a file cannot be read, or changes meanwhile.
        OSError: a copy cannot be stored.
    """
    missing = {name: info for name, info in files.items() if not _is_current(folder / name, info)}
    if not missing:
        return
    total = sum(info["size"] for info in missing.values())
    if (free := shutil.disk_usage(folder).free) < total:
        raise OSError(errno.ENOSPC, f"{total / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")
    log(f"copying {len(missing)} files ({total / 1e6:.1f} MB) of {address} to {folder}")
    with (
        Progress("copy", total=len(missing), noun="file") as progress,
        ThreadPoolExecutor(_COPIES, thread_name_prefix="copy_remote_files") as pool,
    ):
        copies = [pool.submit(_copy_file, system, info, folder / name, address) for name, info in missing.items()]
        try:
            for copy in copies:
                copy.result()
                progress.advance()
        finally:
            pool.shutdown(cancel_futures=True)


def _copy_file(system: Any, info: Mapping[str, Any], target: Path, address: str) -> None:
    unfinished = unfinished_path(target)
    try:
        with remote_errors(f"{address.partition('://')[0]}://{info['name']}"):
            system.get_file(info["name"], str(unfinished))
        if (size := unfinished.stat().st_size) != info["size"]:
            raise InputError(
                f"{address.partition('://')[0]}://{info['name']}: {size} bytes were copied, expected {info['size']}; "
                "it changed meanwhile; run this again"
            )
        os.replace(unfinished, target)
        write_text(_stamp(target), _identity(info))
    finally:
        unfinished.unlink(missing_ok=True)


def _is_current(copy: Path, info: Mapping[str, Any]) -> bool:
    try:
        return copy.stat().st_size == info["size"] and _stamp(copy).read_text(encoding="utf-8") == _identity(info)
    except OSError:
        return False


def _stamp(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.original")


def _identity(info: Mapping[str, Any]) -> str:
    """Return what tells one version of a file from another, as JSON."""
    return json.dumps({key: str(info[key]) for key in ("size", *_IDENTITY) if key in info}, sort_keys=True)
