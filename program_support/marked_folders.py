"""Folders with a marker file, by which a program recognizes what it wrote itself and leaves everything else alone."""

import json
import os
from pathlib import Path
from typing import Any

from program_support.archives import extract_archive
from program_support.atomic_files import unfinished_folder, write_text
from program_support.errors import InputError

MARKER = ".written_by_efficientdet.json"  # hidden: readers of images and labels ignore it


def refuse_unmarked(folder: Path) -> None:
    """Raise InputError for a file, or a folder with content, that does not carry the marker."""
    if os.path.lexists(folder) and not is_marked(folder) and not _is_empty(folder):
        raise InputError(
            f"{folder}: exists and was not written by this program, which would write there; move it, or use another "
            "--output_dir"
        )


def is_marked(folder: Path) -> bool:
    """Return whether a folder carries the marker."""
    return (folder / MARKER).is_file()


def mark_of(folder: Path) -> dict[str, Any]:
    """Return the content of the marker; empty without one."""
    return read_mark(folder / MARKER)


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
        marker = mark_of(folder)
        if marker.get("archive") == fingerprint:
            return str(folder)
        _refuse_changes(folder, marker.get("files") or {}, archive=archive)
    try:
        with unfinished_folder(folder) as unfinished:
            unpacked = unfinished / "new"
            extract_archive(archive, unpacked, target=folder)
            mark_folder(unpacked, archive=fingerprint, files=_states(unpacked))
            if is_marked(folder):
                os.rename(folder, unfinished / "old")
            os.rename(unpacked, folder)
    except OSError as error:
        raise InputError(f"{archive}: cannot be unpacked into {folder} ({error})") from error
    return str(folder)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def read_mark(path: Path) -> dict[str, Any]:
    """Return the content of a file that a program wrote for itself; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _states(folder: Path) -> dict[str, list[int]]:
    """Return relative name -> size and modification time of all files below a folder, without the marker."""
    states = {}
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            stat = path.lstat()
            states[str(path.relative_to(folder))] = [stat.st_size, stat.st_mtime_ns]
    states.pop(MARKER, None)
    return states


def _refuse_changes(folder: Path, recorded: dict[str, Any], *, archive: str) -> None:
    """Raise InputError if files below a folder were changed, added or removed since it was unpacked."""
    now = _states(folder)
    for name in sorted({*now, *recorded}):
        if now.get(name) != recorded.get(name):
            change = "removed" if name not in now else "changed" if name in recorded else "added"
            raise InputError(
                f"{folder / name}: {change} after {archive} was unpacked, which has other content now; copy the "
                f"correction into the archive and remove {folder}, or use another --output_dir"
            )
