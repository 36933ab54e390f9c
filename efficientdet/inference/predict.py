"""Detection with a detector in memory: uint8 images to boxes in original pixels, on an accelerator in one program."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import keras
import numpy as np
from keras import ops

from efficientdet.devices import device
from efficientdet.devices.runtime import accelerator_count
from efficientdet.inference.export_formats import export_formats
from efficientdet.inference.exported_network import ExportedNetwork, Outputs, Postprocess, Result, copied
from efficientdet.inference.image_rows import BatchDetector, fetched
from model.detection_model import DetectionModel
from object_detection.structures import Detections, Tensor, stacked

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


def build_predict(
    detector: DetectionModel,
    *,
    compiled: bool,
    runtime: str = "keras",
    int8_images: Sequence[str] = (),
    resize: "ResizeRule | None" = None,
) -> "BackendDetector | HostDetector":
    """Return a detector for images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`).

    With `runtime` keras it uses the weights of the network at each call. Any other runtime keeps the current weights,
    quantized to int8 if there are `int8_images`, which `resize` converts to inputs.
    """
    if runtime != "keras":
        return HostDetector(
            detector, exported_network(detector, runtime=runtime, int8_images=int8_images, resize=resize)
        )
    if compiled or accelerator_count() or not detector.detects_on_host:
        return BackendDetector(detector, use_xla=compiled)
    return HostDetector(detector, BackendNetwork(detector))


class BackendDetector(BatchDetector):
    """A detector as one program of the Keras backend, with the weights that its network has at each call."""

    def __init__(self, detector: DetectionModel, *, use_xla: bool):
        """Prepare the programs, which are compiled at their first call."""

        def detect(images, sizes):
            return detector.detections(detector.outputs(images, sizes), sizes)

        self._detect, self.outputs, self.postprocess = (
            device.compiled(program, detector.network, use_xla=use_xla)
            for program in (detect, detector.outputs, detector.detections)
        )

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """See `BatchDetector`."""
        return self._detect(images, sizes)


class HostDetector(BatchDetector):
    """A detector whose network runs separately, with post-processing in NumPy, or in the backend if NumPy has none.

    On a CPU, candidate selection and NMS in NumPy take a fifth of the time of a backend's, which selects one box at a
    time.
    """

    def __init__(self, detector: DetectionModel, network: "BackendNetwork | ExportedNetwork"):
        """Wrap a network; its weights are used, not the detector's."""
        self._detector, self._network = detector, network

    def detect(self, images: Tensor, sizes: Tensor) -> Detections:
        """See `BatchDetector`. The post-processing of one image overlaps with the network of the next."""
        if not self._detector.detects_on_host:
            return self.postprocess(self.outputs(images, sizes), sizes)
        return stacked(
            self._network(np.asarray(images), np.asarray(sizes, np.int32), self._detector.detections_on_host)
        )

    def outputs(self, images: Tensor, sizes: Tensor) -> list[Outputs]:
        """Run the network alone."""
        return self._network(np.asarray(images), np.asarray(sizes, np.int32), copied)

    def postprocess(self, outputs: Sequence[Outputs], sizes: Tensor) -> Detections:
        """Convert the outputs of B images to detections."""
        detector, sizes = self._detector, np.asarray(sizes, np.int32)
        if detector.detects_on_host:
            return stacked([detector.detections_on_host(*image) for image in zip(outputs, sizes, strict=True)])
        flat = [ops.convert_to_tensor(np.stack(values)) for values in zip(*outputs, strict=True)]
        nested = keras.tree.pack_sequence_as(self._structure, flat)
        return fetched(detector.detections(nested, ops.convert_to_tensor(sizes)))

    @cached_property
    def _structure(self):
        """Return a nest in the order of the network's outputs."""
        size = self._detector.image_size
        nothing = np.zeros((1, *size, 3), np.uint8), np.int32([size])
        return self._detector.outputs(*map(ops.convert_to_tensor, nothing))


class BackendNetwork:
    """A detector's network run by the Keras backend, with the weights that it has at each call."""

    def __init__(self, detector: DetectionModel):
        self._run = device.compiled(
            lambda images, sizes: detector.host_outputs(detector.outputs(images, sizes)),
            detector.network,
            use_xla=False,
        )

    def __call__(self, images: np.ndarray, sizes: np.ndarray, postprocess: Postprocess[Result]) -> list[Result]:
        """See `ExportedNetwork`."""
        outputs = zip(*map(np.asarray, self._run(images, sizes)), strict=True)
        return [postprocess(*image) for image in zip(outputs, sizes, strict=True)]


def exported_network(
    detector: DetectionModel, *, runtime: str, int8_images: Sequence[str] = (), resize: "ResizeRule | None" = None
) -> ExportedNetwork:
    """Export the detector's current network to another runtime; in int8 if there are calibration images."""
    content = export_formats()["onnx"].content(detector, runtime=runtime, int8_images=int8_images, resize=resize)
    return ExportedNetwork(content, runtime=runtime)
