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
    from efficientdet.inference.detect import Detector
    from efficientdet.inference.image_detections import ImageDetections
    from efficientdet.operations.compare_interface import compare
    from efficientdet.operations.infer_interface import infer
    from efficientdet.operations.interface import convert, evaluate, examine, export, train
    from efficientdet.operations.verify_model import verify
    from efficientdet.prediction.open_model import load_detector
    from efficientdet.prediction.video_source import read_frames
    from efficientdet.tracking.lines_and_zones import TrackCounts
    from program_support.errors import InputError

    __version__: str

__all__ = [
    "Detector",
    "ImageDetections",
    "InputError",
    "TrackCounts",
    "__version__",
    "compare",
    "convert",
    "evaluate",
    "examine",
    "export",
    "infer",
    "load_detector",
    "read_frames",
    "train",
    "verify",
]

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when ONNX Runtime is imported; the default is to send


def __getattr__(name: str):
    """Import a public name on first access (PEP 562)."""
    if name == "__version__":
        from program_support import installation

        return installation.project_version()
    if name == "load_detector":
        from efficientdet.prediction import open_model

        return open_model.load_detector
    if name == "InputError":
        from program_support import errors

        return errors.InputError
    if name in ("Detector", "LoadedDetector"):  # the name in version 0.1
        from efficientdet.inference import detect

        return detect.Detector
    if name == "ImageDetections":
        from efficientdet.inference import image_detections

        return image_detections.ImageDetections
    if name == "TrackCounts":
        from efficientdet.tracking import lines_and_zones

        return lines_and_zones.TrackCounts
    if name == "read_frames":
        from efficientdet.prediction import video_source

        return video_source.read_frames
    if name == "infer":
        from efficientdet.operations import infer_interface

        return infer_interface.infer
    if name == "compare":
        from efficientdet.operations import compare_interface

        return compare_interface.compare
    if name == "verify":
        from efficientdet.operations import verify_model

        return verify_model.verify
    if name in __all__:
        from efficientdet.operations import interface

        return getattr(interface, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
