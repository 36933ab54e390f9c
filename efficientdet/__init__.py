"""Object detectors of several families: train, evaluate, detect, export.

    import efficientdet

    efficientdet.convert("labeled_images", "records")
    efficientdet.train("records", model_dir="runs/first", num_epochs=30)
    [found] = efficientdet.load_detector("runs/first").predict("photo.jpg")
    found.save("annotated.jpg")

docs/reference/python.md describes all functions. Importing this package is fast: TensorFlow and Keras are imported by
the first call.
"""

import importlib
import os
from pathlib import Path

# A wheel has the other packages inside this one and does not need checkout.py
if Path(__file__).with_name("checkout.py").exists():
    importlib.import_module("efficientdet.checkout").install()

_FUNCTIONS = ("compare", "convert", "evaluate", "examine", "export", "infer", "monitor", "train")
_MODULES = {  # of the public names; __init__.pyi has them for type checkers
    "Detector": "inference.detect",
    "ImageDetections": "inference.image_detections",
    "InputError": "program_support.errors",
    "load_detector": "prediction.open_model",
    "read_frames": "plugins.streams.video_source",
    **dict.fromkeys(_FUNCTIONS, "operations.interface"),
}
__all__ = ["__version__", *_MODULES]
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when ONNX Runtime is imported; the default is to send


def __getattr__(name: str):
    """Import a public name on first access (PEP 562)."""
    if name == "LoadedDetector":  # the name in version 0.1
        name = "Detector"
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name == "__version__":
        from program_support import installation

        return installation.project_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
