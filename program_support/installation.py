"""Values that processes and machines compare: versions that determine results, and JSON that is equal in all."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent  # folder of the packages of this program
# Packages whose version changes what is decoded, converted and detected
_PACKAGES = ("keras", "numpy", "opencv-python-headless", "pillow", "pycocotools", "ray", "simplejpeg", "tensorflow")


def project_version() -> str:
    """Return the version of this project: of its tree, which need not be installed, else of the installed wheel."""
    with contextlib.suppress(OSError):
        return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        return importlib.metadata.version("efficientdet-tf2")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"  # a copy of the packages alone


@functools.cache
def installation() -> dict[str, str]:
    """Return the versions that determine results: Python's, those of packages, and a digest of this program."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "none"
    return versions | {"program": program_digest()}


def program_digest() -> str:
    """Return a digest of this program's source files."""
    digest = hashlib.sha256()
    for folder in ("dataset", "efficientdet", "model", "object_detection", "program_support"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, of which sets are sorted lists, dataclasses mappings, and tuples lists.

    A `repr` lists a set in the order of the process's hash seed.

    Raises:
        TypeError: for a value of another type.
    """
    return json.dumps(value, sort_keys=True, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=canonical_json)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{value!r} has no canonical form")
