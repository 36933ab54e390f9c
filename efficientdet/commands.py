"""The commands that `pip install` makes (efficientdet-train, ...): each runs the program of a checkout, and nothing else."""

import importlib.util
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent  # a checkout, or site-packages
_PACKAGES = ("dataset", "model", "object_detection")  # names that other projects use too


def train() -> None:
    """Run train.py."""
    _run("train")


def evaluate() -> None:
    """Run eval.py."""
    _run("eval")


def infer() -> None:
    """Run infer.py."""
    _run("infer")


def inspect() -> None:
    """Run inspector.py."""
    _run("inspector")


def export() -> None:
    """Run export.py."""
    _run("export")


def quickstart() -> None:
    """Run quickstart.py."""
    _run("quickstart")


def serve() -> None:
    """Run serve.py."""
    _run("serve")


def get_weights() -> None:
    """Run efficientdet/checkpoints/get_weights.py."""
    _run("efficientdet.checkpoints.get_weights")


def convert() -> None:
    """Run dataset/create_tfrecord.py."""
    _run("dataset.create_tfrecord")


def convert_coco() -> None:
    """Run dataset/create_coco_tfrecord.py."""
    _run("dataset.create_coco_tfrecord")


def convert_pascal() -> None:
    """Run dataset/create_pascal_tfrecord.py."""
    _run("dataset.create_pascal_tfrecord")


def convert_open_images() -> None:
    """Run dataset/create_open_images_tfrecord.py."""
    _run("dataset.create_open_images_tfrecord")


def _run(program: str) -> None:
    """Execute a module as `python -m` does. Unlike `runpy`, leaves the name of the command for messages, and the module in
    place, so that processes which it starts find it."""
    for name in (*_PACKAGES, program):
        if wrong := what_is_wrong_with(name):
            print(f"{Path(sys.argv[0]).name}: error: {wrong}", file=sys.stderr)
            sys.exit(2)
    spec = importlib.util.find_spec(program)
    module = importlib.util.module_from_spec(spec)
    module.__name__ = "__main__"
    sys.modules["__main__"] = module
    exec(spec.loader.get_code(program), vars(module))


def what_is_wrong_with(name: str) -> str | None:
    """A line where a module of this name is missing, or somebody else's stands before ours."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return f"the module {name} of this project is missing; install it again"
    place = spec.origin or next(iter(spec.submodule_search_locations))
    if _ROOT in Path(place).resolve().parents:
        return None
    return (f"the module {name} is {place}, not this project's; unset PYTHONPATH, or install this project into an environment "
            "of its own")
