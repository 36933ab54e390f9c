"""A program replaces only what it wrote itself and no one has changed since.

Outputs in folders with other files: a hidden list in each folder has the digest of every output. A file that is not on
the list, or differs from it, is the user's. Folders of a program alone have a hidden marker instead.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from program_support.archives import extract_archive
from program_support.atomic_files import report_write_errors, unfinished_folder, write_text
from program_support.errors import InputError

_LIST = ".outputs_of_efficientdet.json"
MARKER = ".written_by_efficientdet.json"  # hidden: readers of images and labels ignore it


@contextlib.contextmanager
def claimed_outputs(*paths: str | Path | None, adopts: bool = False) -> Iterator[None]:
    """Let a block write files and folders at these paths, without any loss of a user's file.

    What the block leaves there is listed. What a killed block left counts as listed.

    Args:
        paths: files, and folders of which the block may replace everything. None, and devices, are ignored.
        adopts: files that are not listed are of a version of this program that had no list.

    Raises:
        InputError: before the block, for a file at or below a path that is not listed, or was changed since.
    """
    folders: dict[Path, list[str]] = defaultdict(list)
    for path in [Path(path) for path in paths if path]:
        if path.is_file() or path.is_dir() or not path.exists():
            folders[path.parent].append(path.name)
    for folder, names in folders.items():
        _refuse_losses(folder, names, adopts=adopts or is_marked(folder))
    for folder, names in folders.items():
        with report_write_errors(folder / names[0]):
            folder.mkdir(parents=True, exist_ok=True)
            with _changed_list(folder) as listed:
                listed["unfinished"] = sorted({*listed["unfinished"], *names})
    try:
        yield
    finally:
        for folder, names in folders.items():
            with contextlib.suppress(OSError):  # such as a full disk; they stay unfinished
                list_outputs(folder, names)


def list_outputs(folder: Path, names: Collection[str]) -> None:
    """List what is at these names in a folder as outputs.

    Raises:
        OSError: the list cannot be written.
    """
    digests = {name: _digests(folder / name) for name in names}
    with _changed_list(folder) as listed:
        listed["outputs"] = {name: parts for name, parts in (listed["outputs"] | digests).items() if parts}
        listed["unfinished"] = sorted({*listed["unfinished"]} - {*names})


def remove_outputs(folder: Path, names: Collection[str]) -> None:
    """Remove the files at these names of a `claimed_outputs` block, and folders that are empty without them.

    Raises:
        OSError: one cannot be removed.
    """
    for name in names:
        for _, path in _files(folder / name):
            path.unlink()
        for below, _, _ in os.walk(folder / name, topdown=False):
            with contextlib.suppress(OSError):  # a hidden file of a file manager, for example
                os.rmdir(below)


def is_output(path: Path, *, below: Path) -> bool:
    """Return whether a file, or a folder that it is in, is listed in a folder `below` or deeper."""
    for place in (path, *path.parents):
        if place == below:
            break
        listed = _list_of(place.parent)
        if place.name in listed["outputs"] or place.name in listed["unfinished"]:
            return True
    return False


def _refuse_losses(folder: Path, names: Collection[str], *, adopts: bool) -> None:
    listed = _list_of(folder)
    unfinished = {*listed["unfinished"]}
    for name in names:
        if name in unfinished:
            continue
        digests = listed["outputs"].get(name, {})
        for part, path in _files(folder / name):
            fate = ""
            if part not in digests:
                fate = "" if adopts else "exists and was not written by this program"
            elif _digest(path) != digests[part]:
                fate = "was changed after this program wrote it"
            if fate:
                raise InputError(f"{path}: {fate}, which would replace it; move it, or choose another output folder")


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield what is at a path, or below a folder, by its relative name; hidden files below a folder are no outputs."""
    if not path.is_dir():
        if os.path.lexists(path):
            yield "", path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), path), Path(folder, name)


def _digests(path: Path) -> dict[str, str]:
    return {name: _digest(file) for name, file in _files(path)}


def _digest(path: Path) -> str:
    """Return the digest of a file; "" for a link and others, which no program here writes."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _list_of(folder: Path) -> dict[str, Any]:
    content = read_mark(folder / _LIST)
    outputs = content.get("outputs") or {}
    if isinstance(outputs, list):  # names, of versions without digests
        return {"outputs": {}, "unfinished": outputs}
    return {"outputs": outputs, "unfinished": content.get("unfinished") or []}


@contextlib.contextmanager
def _changed_list(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the list of a folder to be changed; programs that run at the same time wait for each other."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network mounts have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        listed = _list_of(folder)
        yield listed
        if any(listed.values()):
            write_text(folder / _LIST, json.dumps(listed, sort_keys=True) + "\n")
        else:
            (folder / _LIST).unlink(missing_ok=True)
    finally:
        os.close(handle)


def refuse_unmarked(folder: Path) -> None:
    """Raise InputError for a file, or a folder with content, that does not carry the marker."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if os.path.lexists(folder) and not is_marked(folder) and not is_empty:
        raise InputError(
            f"{folder}: exists and was not written by this program, which would write there; move it, or use another "
            "--output_dir"
        )


def is_marked(folder: Path) -> bool:
    """Return whether a folder carries the marker."""
    return (folder / MARKER).is_file()


def claim_folder(folder: Path) -> Path:
    """Return the folder, which gets the marker if it is new or empty.

    Raises:
        InputError: it has only other content.
    """
    refuse_unmarked(folder)
    try:
        if not folder.exists():
            with unfinished_folder(folder) as unfinished:  # a kill leaves no folder without the marker
                (unfinished / "new").mkdir()
                mark_folder(unfinished / "new")
                os.rename(unfinished / "new", folder)
        elif not is_marked(folder):
            mark_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from error
    return folder


def mark_folder(folder: Path, **content: Any) -> None:
    """Write the marker into a folder of this program, with content as JSON.

    Raises:
        OSError: the mark cannot be written.
    """
    write_text(folder / MARKER, json.dumps(content) + "\n")


def unpacked_archive(archive: str, folder: Path, *, fingerprint: str) -> str:
    """Unpack a zip or tar archive into a folder that appears complete or not at all, and return the folder.

    The folder of an earlier call stays as it is, with the user's corrections, until the archive has another
    fingerprint; then it is replaced unless something in it was changed.

    Raises:
        InputError: one line, for an archive that cannot be unpacked or is larger than the disk, and for a folder
            that may not be replaced.
    """
    refuse_unmarked(folder)
    if is_marked(folder):
        marker = read_mark(folder / MARKER)
        if marker.get("archive") == fingerprint:
            return str(folder)
        _refuse_changes(folder, marker.get("files") or {}, archive=archive)
    try:
        with unfinished_folder(folder) as unfinished:
            unpacked = unfinished / "new"
            extract_archive(archive, unpacked, target=folder)
            mark_folder(unpacked, archive=fingerprint, files=_digests(unpacked))
            if is_marked(folder):
                os.rename(folder, unfinished / "old")
            os.rename(unpacked, folder)
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    return str(folder)


def read_mark(path: Path) -> dict[str, Any]:
    """Return the content of a file that a program wrote for itself; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _refuse_changes(folder: Path, recorded: dict[str, Any], *, archive: str) -> None:
    """Raise InputError if files below a folder were changed, added or removed since it was unpacked."""
    now = _digests(folder)
    recorded = {name: value for name, value in recorded.items() if not Path(name).name.startswith(".")}
    for name in sorted({*now, *recorded}):
        if not _is_as_recorded(folder / name, now.get(name), recorded.get(name)):
            change = "removed" if name not in now else "changed" if name in recorded else "added"
            raise InputError(
                f"{folder / name}: {change} after {archive} was unpacked, which has other content now; copy the "
                f"correction into the archive and remove {folder}, or use another --output_dir"
            )


def _is_as_recorded(path: Path, digest: str | None, recorded: Any) -> bool:
    """Return whether a file has the recorded digest, or the size and time that earlier versions recorded."""
    if isinstance(recorded, list) and path.is_file():
        status = path.stat()
        return recorded == [status.st_size, status.st_mtime_ns]
    return bool(digest == recorded)
