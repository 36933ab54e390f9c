"""Folders with a marker file, by which a program recognizes what it wrote itself and leaves everything else alone."""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from program_support.archives import extract_archive
from program_support.atomic_files import report_write_errors, unfinished_folder, write_text
from program_support.errors import InputError

MARKER = ".written_by_efficientdet.json"  # hidden: readers of images and labels ignore it
_OUTPUTS = ".outputs_of_efficientdet.json"  # names in a folder that may hold other files, too


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
    return _read_json(folder / MARKER)


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


def claim_outputs(folder: Path, names: Collection[str]) -> None:
    """Create a folder, which may hold other files, and record the names that a program will write in it.

    Raises:
        InputError: for a name that exists and was not recorded by an earlier call, before anything is written.
    """
    record = folder / _OUTPUTS
    recorded = set(_read_json(record).get("outputs") or ())
    for name in names:
        if name not in recorded and os.path.lexists(folder / name):
            raise InputError(
                f"{folder / name}: exists and was not written by this program, which would overwrite it; move it, or "
                "use another --output_dir"
            )
    with report_write_errors(record):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(record, json.dumps({"outputs": sorted({*recorded, *names})}) + "\n")


def is_output(path: Path, *, below: Path) -> bool:
    """Return whether `claim_outputs` recorded a file, or a folder that it is in, in a folder `below` or deeper."""
    for place in (path, *path.parents):
        if place == below:
            break
        if place.name in (_read_json(place.parent / _OUTPUTS).get("outputs") or ()):
            return True
    return False


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


def _read_json(path: Path) -> dict[str, Any]:
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
