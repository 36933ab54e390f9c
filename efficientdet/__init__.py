"""Object detectors of several families: train, evaluate, detect, export.

    import efficientdet

    efficientdet.convert("labeled_images", "records")
    efficientdet.train("records", model_dir="runs/first", num_epochs=30)
    [found] = efficientdet.load_detector("runs/first").predict("photo.jpg")
    found.save("annotated.jpg")

docs/reference/python.md describes all functions. Importing this package is fast: TensorFlow and Keras are imported by
the first call.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

# A wheel has the other packages inside this one and does not need checkout.py
if Path(__file__).with_name("checkout.py").exists():
    from efficientdet import checkout

    checkout.install()

if TYPE_CHECKING:
    from efficientdet.inference.detector import ImageDetections, LoadedDetector
    from efficientdet.inference.loading import load_detector
    from efficientdet.operations.interface import convert, evaluate, examine, export, train
    from program_support.errors import InputError

    __version__: str

__all__ = [
    "ImageDetections",
    "InputError",
    "LoadedDetector",
    "__version__",
    "convert",
    "evaluate",
    "examine",
    "export",
    "load_detector",
    "train",
]

_DISTRIBUTION = "efficientdet-tf2"
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when ONNX Runtime is imported; the default is to send


def __getattr__(name: str):
    """Import a public name on first access (PEP 562)."""
    if name == "__version__":
        from importlib import metadata

        try:
            return metadata.version(_DISTRIBUTION)
        except metadata.PackageNotFoundError:
            return "0+unknown"  # a copy of the files that was never installed
    if name == "load_detector":
        from efficientdet.inference import loading

        return loading.load_detector
    if name == "InputError":
        from program_support import errors

        return errors.InputError
    if name in ("ImageDetections", "LoadedDetector"):
        from efficientdet.inference import detector

        return getattr(detector, name)
    if name in __all__:
        from efficientdet.operations import interface

        return getattr(interface, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
