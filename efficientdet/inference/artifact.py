"""Detection with an exported file, without importing TensorFlow or Keras."""

import importlib.util
import os

import numpy as np

from efficientdet.artifacts.artifact_files import Kind, kind_of, read_artifact
from efficientdet.configuration.inference_runtimes import require_package
from efficientdet.inference.exported_network import ExportedNetwork, Outputs, copied
from efficientdet.inference.image_rows import BatchDetector, LoadedModel, ResizingDetector
from object_detection.structures import Detections, Tensor, stacked
from program_support.errors import InputError


def artifact_runtime(path: str, runtime: str, *, asked_by: str) -> str:
    """Return the runtime of a file of export.py: the chosen one, or for "keras" the file's default.

    OpenVINO is the default for ONNX in 8 bits, if it is installed: ONNX Runtime would compute most of it in float32.

    Raises InputError if the file is not such a file, or the runtime cannot run it or is not installed.
    """
    if (kind := kind_of(path)) is None:
        raise InputError(f"{asked_by}: {path} is not a self-contained detector written by export.py")
    runtime = _default_runtime(path, kind) if runtime == "keras" else runtime
    if runtime not in kind.runtimes:
        raise InputError(
            f"{asked_by}: {path} is a file of {kind.name}; {runtime} cannot run it, {kind.runtimes[0]} can"
        )
    require_package(runtime, asked_by=asked_by)
    return runtime


def _default_runtime(path: str, kind: Kind) -> str:
    if "openvino" in kind.runtimes and importlib.util.find_spec("openvino") and os.path.isfile(path):
        with open(path, "rb") as file:
            if b"DequantizeLinear" in file.read():
                return "openvino"
    return kind.runtimes[0]


def artifact_detection(path: str, *, runtime: str) -> LoadedModel:
    """Open a file of export.py with the result of `artifact_runtime`. Raises InputError for other files."""
    model, metadata = read_artifact(path)
    detector = ArtifactDetector(
        ExportedNetwork(model, runtime=runtime, path=path), path=path, class_count=len(metadata.class_names)
    )
    return LoadedModel.from_description(
        ResizingDetector(detector, resize=metadata.resize, description=metadata.description), metadata.description
    )


class ArtifactDetector(BatchDetector):
    """Detector of an exported file that outputs detections, with the weights and NMS of the export."""

    def __init__(self, network: ExportedNetwork, *, path: str, class_count: int):
        """Wrap a network; path: the name of the file in messages."""
        self._network, self._path, self._class_count = network, path, class_count

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """See `BatchDetector`. Raises InputError for a file with other outputs."""
        return stacked(self._network(np.asarray(images), np.asarray(sizes), self._detections))

    def _detections(self, outputs: Outputs, size: np.ndarray) -> Detections:
        """Return the detections of one image, copied because the next outputs overwrite them."""
        shapes = [values.shape for values in outputs]
        if len(shapes) < 3 or shapes[:3] != [(*shapes[1][:1], 4), shapes[1][:1], shapes[1][:1]]:
            raise InputError(
                f"{self._path}: returns {', '.join(map(str, map(list, shapes)))} for an image; expected boxes "
                "[D, 4], scores [D] and classes [D]"
            )
        boxes, scores, classes, *masks = copied(outputs, size)
        found = classes[scores > 0]
        if found.size and not 0 <= found.min() <= found.max() < self._class_count:
            raise InputError(
                f"{self._path}: returns classes {found.min()} to {found.max()}; expected 0 to {self._class_count - 1}"
            )
        valid = (scores > 0) & np.isfinite(boxes).all(axis=-1)  # before they are clipped to the image
        return Detections(boxes, scores, classes, valid, masks[0] if masks else None)
