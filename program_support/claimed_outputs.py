"""Outputs in folders with other files: a program replaces only what it wrote itself and no one has changed since.

A hidden list in each folder has the digest of every output. A file that is not on the list, or differs from it, is the
user's.
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

from program_support.atomic_files import report_write_errors, write_text
from program_support.errors import InputError
from program_support.marked_folders import is_marked, read_mark

_LIST = ".outputs_of_efficientdet.json"


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
    digests = {name: {part: _digest(path) for part, path in _files(folder / name)} for name in names}
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
