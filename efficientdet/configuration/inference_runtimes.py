"""Checks that the packages of a runtime for inference are installed."""

import importlib.util

from program_support.errors import InputError


def require_runtime(runtime: str, *, asked_by: str) -> None:
    """Raise InputError if a package that the runtime needs is not installed."""
    for package in ("onnx", runtime):
        require_package(package, asked_by=asked_by)


def require_package(package: str, *, asked_by: str) -> None:
    """Raise InputError if the package is not installed; "litert" stands for `ai_edge_litert`."""
    package, extra = ("ai_edge_litert", "litert") if package == "litert" else (package, "export")
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{asked_by} needs the package {package}: pip install -e '.[{extra}]'")
