"""Entry points of the commands that `pip install` creates (efficientdet-train, ...)."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def train() -> None:
    """Run train.py."""
    _run("efficientdet.programs.train")


def evaluate() -> None:
    """Run eval.py."""
    _run("efficientdet.programs.eval")


def compare() -> None:
    """Run compare.py."""
    _run("efficientdet.programs.compare")


def infer() -> None:
    """Run infer.py."""
    _run("efficientdet.programs.infer")


def inspect() -> None:
    """Run inspector.py."""
    _run("efficientdet.programs.inspector")


def export() -> None:
    """Run export.py."""
    _run("efficientdet.programs.export")


def quickstart() -> None:
    """Run quickstart.py."""
    _run("efficientdet.programs.quickstart")


def serve() -> None:
    """Run serve.py."""
    _run("efficientdet.programs.serve")


def next_images() -> None:
    """Run next_images.py."""
    _run("efficientdet.programs.next_images")


def get_weights() -> None:
    """Run efficientdet/weights/get_weights.py."""
    _run("efficientdet.weights.get_weights")


def convert() -> None:
    """Run dataset/create_tfrecord.py."""
    _run("efficientdet.dataset.create_tfrecord")


def convert_coco() -> None:
    """Run dataset/create_coco_tfrecord.py."""
    _run("efficientdet.dataset.create_coco_tfrecord")


def convert_pascal() -> None:
    """Run dataset/create_pascal_tfrecord.py."""
    _run("efficientdet.dataset.create_pascal_tfrecord")


def convert_open_images() -> None:
    """Run dataset/create_open_images_tfrecord.py."""
    _run("efficientdet.dataset.create_open_images_tfrecord")


def doctor() -> None:
    """Run doctor.py."""
    _run("efficientdet.programs.doctor")


def _run(program: str) -> None:
    """Execute a module as `__main__`.

    Unlike `runpy`, keep the name of the command for messages, and the module in `sys.modules`, where child processes
    find it.
    """
    try:
        spec = importlib.util.find_spec(program)
    except ImportError as error:  # another editable project has a module of the same name
        print(f"{Path(sys.argv[0]).name}: error: {error}", file=sys.stderr)
        sys.exit(2)
    assert spec is not None
    loader: Any = spec.loader  # `get_code` is an optional method of loaders
    module = sys.modules["__main__"] = ModuleType("__main__")
    module.__spec__, module.__package__, module.__file__ = spec, spec.parent, spec.origin
    exec(loader.get_code(program), vars(module))
