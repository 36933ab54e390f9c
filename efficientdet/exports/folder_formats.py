"""Exports that are folders: a SavedModel, a web page that detects in the browser, and a function for CVAT."""

import os
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efficientdet.exports.export_format import ExportFormat, NetworkInputs, Runs

if TYPE_CHECKING:
    from efficientdet.checkpoints.restore import Restored
    from efficientdet.inference.detect import Detect, Detector
    from object_detection.coco.results import DetectionRows


class _Folder(ExportFormat):
    batches = (1,)

    def files(self, path: Path) -> list[Path]:
        """See `ExportFormat`."""
        return [file for file in path.rglob("*") if file.is_file()]


class SavedModel(_Folder):
    """The complete detector for images of any size."""

    name, file, other_names = "savedmodel", "saved_model", ("saved_model", "tf")
    needs_tensorflow, title = True, "SavedModel"

    def recognizes(self, path: str) -> bool:
        """See `ExportFormat`."""
        return os.path.isfile(f"{path}/saved_model.pb")

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.exports.saved_model import export_saved_model

        export_saved_model(restored.detector, str(path), description=restored.description, resize=restored.resize)

    def open(self, path: str, *, runtime: str = "keras") -> "Detector":
        """See `ExportFormat`. Successive images of a size run as a batch."""
        from efficientdet.exports.saved_model import load_saved_model
        from efficientdet.inference.detect import Detector, rows_of_image

        signature, description = load_saved_model(path)

        def detect(images: list[np.ndarray]) -> "list[DetectionRows]":
            return [rows for _, batch in groupby(images, np.shape) for rows in detect_batch(list(batch))]

        def detect_batch(images: list[np.ndarray]) -> "list[DetectionRows]":
            outputs = {name: np.asarray(values) for name, values in signature(np.stack(images)).items()}
            return [
                rows_of_image(
                    *(outputs[name][number][:count] for name in ("boxes", "scores", "classes")),
                    image=image,
                    masks=outputs["masks"][number][:count] if "masks" in outputs else None,
                    description=description,
                )
                for number, (image, count) in enumerate(zip(images, outputs["count"], strict=True))
            ]

        return Detector.described(detect, description)

    def parts(self, restored: "Restored", path: Path, inputs: NetworkInputs) -> Runs:
        """Run the functions that the signature of the file calls after it has resized the images."""
        import tensorflow as tf

        detector = restored.detector
        if not detector.postprocessing.detects_on_host:
            return {}
        tensors = [tf.constant(values) for values in inputs]
        network, postprocess = (
            tf.function(function, autograph=False) for function in (detector.outputs, detector.detections)
        )
        return {
            "network": partial(network, *tensors),
            "postprocessing": partial(postprocess, network(*tensors), tensors[1]),
        }


class Web(_Folder):
    """A page that detects in the browser."""

    name, file, other_names = "web", "web", ("tfjs",)
    runs_in = "a browser"

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.exports.web_page import write_web_page

        write_web_page(restored, path)

    def open_for(self, restored: "Restored", path: Path) -> "Detect":
        """Return the detection of the page's model, run by ONNX Runtime."""
        from efficientdet.exports.web_page import web_page_detector

        return web_page_detector(path, restored.description)


class Cvat(_Folder):
    """A function of Nuclio and of cvat-cli for CVAT's automatic annotation."""

    name, file, other_names = "cvat", "cvat", ("nuclio",)
    runs_in = "CVAT"

    def write(self, restored: "Restored", path: Path, calibration: Any = None) -> None:
        """See `ExportFormat`."""
        from efficientdet.exports.cvat_function import write_cvat_function

        write_cvat_function(restored, path)

    def open_for(self, restored: "Restored", path: Path) -> "Detect":
        """Return the detection of the function's model, which is that of a page."""
        from efficientdet.exports.web_page import web_page_detector

        return web_page_detector(path, restored.description)
