"""What can run a network, and whether it is installed."""

import importlib.util

from program_support.errors import InputError

RUNTIMES = ("keras", "onnxruntime", "openvino")


def require_runtime(runtime: str, *, asked_by: str) -> None:
    """Raises InputError where a package that it needs is missing."""
    for package in ("onnx", runtime):
        require_package(package, asked_by=asked_by)


def require_package(package: str, *, asked_by: str) -> None:
    """Raises InputError where it is not installed; "litert" stands for its package of another name."""
    package, extra = ("ai_edge_litert", "litert") if package == "litert" else (package, "export")
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{asked_by} needs the package {package}: pip install -e '.[{extra}]'")
