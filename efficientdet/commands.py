"""Entry points of the commands that `pip install` creates (efficientdet-train, ...)."""

import importlib.util
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULES = {  # by the name of a command's function in pyproject.toml
    "train": "efficientdet.programs.train",
    "evaluate": "efficientdet.programs.eval",
    "compare": "efficientdet.programs.compare",
    "infer": "efficientdet.programs.infer",
    "inspect": "efficientdet.programs.inspector",
    "export": "efficientdet.programs.export",
    "quickstart": "efficientdet.programs.quickstart",
    "serve": "efficientdet.programs.serve",
    "next_images": "efficientdet.programs.next_images",
    "monitor": "efficientdet.programs.monitor",
    "doctor": "efficientdet.programs.doctor",
    "get_weights": "efficientdet.weights.downloads",
    "convert": "efficientdet.dataset.create_tfrecord",
    "convert_coco": "efficientdet.dataset.create_coco_tfrecord",
    "convert_pascal": "efficientdet.dataset.create_pascal_tfrecord",
    "convert_open_images": "efficientdet.dataset.create_open_images_tfrecord",
}


def __getattr__(name: str) -> Callable[[], None]:
    """Return the function of a command, which runs its program (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_run, _MODULES[name])


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
