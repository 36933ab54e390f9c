"""Files at addresses such as s3://BUCKET/FOLDER/FILE, opened by fsspec and copied into a folder of this machine.

A copy gets its name when it is complete. Beside it is a hidden file with what the listing said about the original:
size, checksum or time, so that a changed original is copied again and an unchanged one is not. Processes of a machine
that need the same folder copy it once: the others wait for a lock, which the kernel releases if its holder dies.
"""

import contextlib
import errno
import fnmatch
import functools
import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from program_support.atomic_files import unfinished_path, user_cache, write_text
from program_support.errors import InputError
from program_support.file_lock import waiting_lock
from program_support.progress import Progress
from program_support.remote_addresses import address_of

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
_CREDENTIALS = {
    "s3": "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
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
CACHE_VARIABLE = "EFFICIENTDET_REMOTE_CACHE"
_STAMP = ".original"  # end of the name of the file that says of which version a copy is
_COPIES = 8  # files copied in parallel, to hide the latency of a request
_NAMES_SHOWN = 5


def opened(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it.

    An address is taken literally: fsspec itself would open another file system for each '::' in it.
    """
    import fsspec

    scheme = address.partition("://")[0]
    system = fsspec.filesystem(scheme, **_OPTIONS.get(scheme, {}))
    # gcsfs logs the traceback of what `remote_errors` says in one line
    logging.getLogger(type(system).__module__.partition(".")[0]).setLevel(logging.CRITICAL)
    return system, str(system._strip_protocol(address))


@contextlib.contextmanager
def remote_errors(address: str, *, doing: str = "read") -> Iterator[None]:
    """Raise an error of fsspec or of a client of it in the block as an InputError with the address.

    doing: participle of what is done with the address, for the message.

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
        raise InputError(f"{address}: {_problem(error, address.partition('://')[0], doing)}") from error


def _problem(error: Exception, scheme: str, doing: str) -> str:
    reason = " ".join((str(error) or type(error).__name__).split())[:200]  # botocore's first line may be "..failed:"
    if isinstance(error, ImportError):
        return f"needs a package that is not installed ({reason}): {_INSTALL[scheme]}"
    if isinstance(error, FileNotFoundError):
        return f"there is no such bucket, folder or file ({reason})"
    if isinstance(error, PermissionError) or type(error).__name__ in ("NoCredentialsError", "NoCredentials"):
        return f"access denied ({reason}); expected credentials with permission: {_CREDENTIALS.get(scheme, scheme)}"
    return f"cannot be {doing} ({reason}); check the network and the address of the server"


def cache_folder() -> Path:
    """Return $EFFICIENTDET_REMOTE_CACHE, else efficientdet/remote in $XDG_CACHE_HOME, else in ~/.cache."""
    return user_cache("remote", variable=CACHE_VARIABLE)


def local_copies(pattern: str, *, beside: Collection[str] = ()) -> list[str]:
    """Return the paths of local copies of the files that match a remote pattern, sorted; copy what is new or changed.

    Args:
        pattern: address of a folder, and a name or a glob pattern of names in it.
        beside: suffixes of other files of the folder that are copied, too; copies without an original are removed.

    Raises:
        InputError: nothing matches, the files cannot be read, or the copies cannot be stored.
    """
    pattern = address_of(pattern)
    with remote_errors(pattern):
        system, path = opened(pattern)
        system.invalidate_cache()  # a listing of this process may be old
        folder, _, name = path.rpartition("/")
        if not folder or not name:
            raise InputError(
                f"{pattern}: expected a pattern of files in a folder or bucket, such as {pattern.rstrip('/')}/train-*"
            )
        files = {_name(info): info for info in system.ls(folder, detail=True) if info["type"] == "file"}
        matching = {each for each in files if each == name or fnmatch.fnmatchcase(each, name)}
        if not matching:
            raise InputError(f"{pattern}: no file matches; {_contents(system, path, files)}")
    chosen = {each: files[each] for each in files if each in matching or each.endswith(tuple(beside))}
    local = _local_folder(pattern, folder)
    with _stored(local), _sole_copier(local):
        for old in local.iterdir():
            if old.name not in files and old.name.endswith(tuple(beside)) and not old.name.startswith("."):
                old.unlink()
        _copy(system, chosen, local, address=pattern)
    return sorted(str(local / each) for each in matching)


def local_tree(address: str, *, leave_out: Collection[str]) -> str:
    """Return the path of a local copy of a file, or of a folder with all below it, copied as `local_copies` does.

    Args:
        address: address of the file or folder.
        leave_out: suffixes of files in the folder that are not copied, in lower case; hidden files are not, either.

    Raises:
        InputError: there is nothing, it cannot be read, or the copies cannot be stored.
    """
    address = address_of(address)
    with remote_errors(address):
        system, root = opened(address)
        system.invalidate_cache()
        if system.isfile(root):
            return local_copies(address)[0]
        system.ls(root)  # raises an error for a missing bucket, which `find` does not
        found = files_below(system, root)
    files = {
        name: info
        for name, info in found.items()
        if PurePosixPath(name).suffix.lower() not in leave_out and not is_hidden(name)
    }
    local = _local_folder(address, root)
    with _stored(local), _sole_copier(local):
        copies = [path for path in local.rglob("[!.]*") if path.is_file()]
        for old in copies:
            if str(old.relative_to(local)) not in files:
                old.unlink()
        _copy(system, files, local, address=address)
    return str(local)


def files_below(system: Any, root: str) -> dict[str, dict[str, Any]]:
    """Return what the listing says of each file below a folder, by relative name."""
    return {path[len(root) :].strip("/"): info for path, info in system.find(root, detail=True).items()}


def is_hidden(name: str) -> bool:
    """Return whether a part of a relative name begins with a dot."""
    return any(part.startswith(".") for part in name.split("/"))


def _name(info: Mapping[str, Any]) -> str:
    return PurePosixPath(info["name"]).name


def _contents(system: Any, path: str, files: Collection[str]) -> str:
    """Return what is there instead of the file that a path names."""
    if "*" not in path and system.isdir(path):
        held = _shown(_name(info) for info in system.ls(path, detail=True))
        return f"it is a folder, which holds {held}; expected a pattern of files in it, ending with /*"
    return f"the folder holds {_shown(files) or 'no files'}"


def _shown(names: Any) -> str:
    names = sorted(names)
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _local_folder(address: str, folder: str) -> Path:
    """Return the folder of the cache for a remote folder."""
    parts = folder.strip("/").split("/")
    return cache_folder().joinpath(address.partition("://")[0], *parts)


def mirrored(address: str, local: Path, *, not_copied: tuple[str, ...], kept: Collection[str]) -> dict[str, int]:
    """Make a local folder what a remote one is, hidden files included; a missing one is empty.

    Args:
        address: address of the folder.
        local: the local folder; it is locked by the caller if necessary.
        not_copied: ends of the names of files that are left out.
        kept: names of local files that stay without an original.

    Returns:
        Size in bytes of the files left out, by relative name.

    Raises:
        InputError: the folder cannot be read or stored.
    """
    with remote_errors(address):
        system, root = opened(address)
        system.invalidate_cache()
        try:
            system.ls(root)
        except FileNotFoundError:
            found = {}
            system.ls(root.split("/")[0])  # raises an error for a missing bucket
        else:
            found = files_below(system, root)
    with _stored(local):
        for old in [path for path in local.rglob("*") if path.is_file()]:
            if str(old.relative_to(local)) not in found and old.name not in kept and not old.name.endswith(_STAMP):
                old.unlink()
        chosen = {name: info for name, info in found.items() if not name.endswith(not_copied)}
        _copy(system, chosen, local, address=address, quiet=True)
    return {name: info["size"] for name, info in found.items() if name not in chosen}


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


def _sole_copier(folder: Path) -> contextlib.AbstractContextManager[bool]:
    message = f"waiting for the process that copies to {folder}"
    return waiting_lock(folder / ".lock", log=functools.partial(print, flush=True), message=message)


def _copy(
    system: Any, files: Mapping[str, Mapping[str, Any]], folder: Path, *, address: str, quiet: bool = False
) -> None:
    """Copy the files of which the folder has no copy, or one of another version.

    Raises:
        InputError: a file cannot be read, or changes meanwhile.
        OSError: a copy cannot be stored.
    """
    if outside := next((name for name in files if ".." in (folder / name).parts), None):
        raise InputError(f"{address}: {outside}: expected a name without '..'")
    missing = {name: info for name, info in files.items() if not _is_current(folder / name, info)}
    if not missing:
        return
    total = sum(info["size"] for info in missing.values())
    if (free := shutil.disk_usage(folder).free) < total:
        raise OSError(errno.ENOSPC, f"{total / 1e6:.0f} MB are needed, {free / 1e6:.0f} MB are free")
    if not quiet:
        files_to_copy = f"{len(missing)} file{'s' * (len(missing) != 1)} ({total / 1e6:.1f} MB)"
        print(f"copying {files_to_copy} of {address} to {folder}", flush=True)
    with (
        Progress("copy", total=len(missing), noun="file", slow_start=True) as progress,
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
    target.parent.mkdir(parents=True, exist_ok=True)
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
        write_text(_stamp(target), identity(info))
    finally:
        unfinished.unlink(missing_ok=True)


def _is_current(copy: Path, info: Mapping[str, Any]) -> bool:
    try:
        return copy.stat().st_size == info["size"] and _stamp(copy).read_text(encoding="utf-8") == identity(info)
    except OSError:
        return False


def _stamp(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}{_STAMP}")


def identity(info: Mapping[str, Any]) -> str:
    """Return what tells one version of a file from another, as JSON."""
    return json.dumps({key: str(info[key]) for key in ("size", *_IDENTITY) if key in info}, sort_keys=True)
