"""Provenance of a model: `provenance.json` beside its checkpoints and its exported files."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from efficientdet.devices.device import device_name, versions
from program_support.atomic_files import report_write_errors, write_text
from program_support.file_patterns import paths_beginning_with
from program_support.installation import project_version

FILE_NAME = "provenance.json"
_ROOT = Path(__file__).resolve().parents[2]


def code_version() -> str:
    """Return the commit of the checkout that runs, marked if files differ from it, or else the project's version."""

    def git(*words: str) -> str:
        try:
            return subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True).stdout.strip()
        except OSError:  # there is no git
            return ""

    if Path(git("rev-parse", "--show-toplevel") or "/") != _ROOT:
        return f"efficientdet-tf2 {project_version()}"
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"commit {git('rev-parse', 'HEAD')}{' and changes' * bool(changed)}"


def machine() -> dict[str, Any]:
    """Return the machine, the system and the versions of the packages that compute."""
    return {"device": device_name(), "system": platform.platform(), "packages": versions()}


def checksums(paths: Iterable[str | Path]) -> dict[str, str]:
    """Return the SHA-256 of each file, by path; of a prefix without a file of its name, of all files beginning with it.

    Raises:
        OSError: a file cannot be read.
    """
    files = [
        file
        for path in paths
        for file in (
            [path]
            if Path(path).is_file()
            else paths_beginning_with(path, ".data-*") + paths_beginning_with(path, ".index")
        )
    ]
    sums = {}
    for file in files:
        with open(file, "rb") as stream:
            sums[str(file)] = hashlib.file_digest(stream, "sha256").hexdigest()
    return sums


def write_provenance(folder: str | Path, content: Mapping[str, Any]) -> None:
    """Write the file into a folder.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(folder, FILE_NAME)
    with report_write_errors(path):
        write_text(path, json.dumps(content, indent=1, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as a number, and a path as text."""
    return value.item() if hasattr(value, "item") else str(value)


def read_provenance(checkpoint: str | Path) -> dict[str, Any] | None:
    """Return the provenance in the folder of a checkpoint; None if there is none, as of other programs' files."""
    try:
        return json.loads(Path(checkpoint).with_name(FILE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def without_folders(content: Any) -> Any:
    """Return provenance to publish: of each path only the file's name."""
    if isinstance(content, Mapping):
        return {_name(key): without_folders(value) for key, value in content.items()}
    if isinstance(content, list):
        return [without_folders(value) for value in content]
    return _name(content) if isinstance(content, str) else content


def _name(text: str) -> str:
    return Path(text).name if text.startswith(("/", "~", ".")) else text
