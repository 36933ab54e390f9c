"""The version of this project, and those that determine its results, to compare them with other machines'."""

import contextlib
import functools
import hashlib
import importlib.metadata
import platform
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent  # folder of the packages of this program
_PACKAGES = (
    "horovod",
    "jax",
    "jaxlib",
    "keras",
    "numpy",
    "onnxruntime",
    "opencv-python-headless",
    "openvino",
    "pillow",
    "pycocotools",
    "ray",
    "simplejpeg",
    "tensorflow",
)


def project_version() -> str:
    """Return the version of this project: of its tree, which need not be installed, else of the installed wheel."""
    with contextlib.suppress(OSError):
        return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    try:
        return importlib.metadata.version("efficientdet-tf2")
    except importlib.metadata.PackageNotFoundError:
        return "0+unknown"  # a copy of the packages alone


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages that affect results or speed, by name."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def installation() -> dict[str, str]:
    """Return the versions that affect results, and a digest of this program, to compare them with other processes'."""
    return dict.fromkeys(_PACKAGES, "none") | versions() | {"program": program_digest()}


@functools.cache
def program_digest() -> str:
    """Return a digest of this program's source files."""
    digest = hashlib.sha256()
    for folder in ("dataset", "efficientdet", "model", "object_detection", "program_support"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]
