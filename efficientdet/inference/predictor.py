"""Detection with a detector in memory: uint8 images to boxes in original pixels, on an accelerator in one program."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import keras
import numpy as np
from keras import ops

from efficientdet.devices import device
from efficientdet.devices.runtime import accelerator_count
from efficientdet.inference.runtimes import Outputs, Postprocess, Predictor, Result, copied, fetched
from model.detection_model import DetectionModel
from object_detection.structures import Detections, Tensor, stacked


def keras_predictor(detector: DetectionModel, *, compiled: bool, constant_weights: bool) -> Predictor:
    """Return a detector for images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`).

    It uses the weights of the network at each call; with `constant_weights`, the present ones.
    """
    constants = device.present_weights(detector.network) if constant_weights else None
    if compiled or accelerator_count() or not detector.postprocessing.detects_on_host:
        return _backend_predictor(detector, use_xla=compiled, constants=constants)
    return host_predictor(detector, _backend_network(detector, constants))


def host_predictor(detector: DetectionModel, network: Callable[..., list[Any]]) -> Predictor:
    """Return a detector whose network runs separately, with its weights and not the detector's.

    The post-processing is in NumPy, or in the backend if NumPy has none. On a CPU, candidate selection and NMS in NumPy
    take a fifth of the time of a backend's, which selects one box at a time. The post-processing of one image overlaps
    with the network of the next.
    """

    def run(images: Tensor, sizes: Tensor, postprocess: Postprocess[Result]) -> list[Result]:
        return network(np.asarray(images), np.asarray(sizes, np.int32), postprocess)

    def detect(images: Tensor, sizes: Tensor) -> Detections:
        if not detector.postprocessing.detects_on_host:
            return postprocess(outputs(images, sizes), sizes)
        return stacked(run(images, sizes, detector.postprocessing.detections_on_host))

    def outputs(images: Tensor, sizes: Tensor) -> list[Outputs]:
        return run(images, sizes, copied)

    def postprocess(outputs: Sequence[Outputs], sizes: Tensor) -> Detections:
        sizes = np.asarray(sizes, np.int32)
        if detector.postprocessing.detects_on_host:
            return stacked(
                [detector.postprocessing.detections_on_host(*image) for image in zip(outputs, sizes, strict=True)]
            )
        flat = [ops.convert_to_tensor(np.stack(values)) for values in zip(*outputs, strict=True)]
        nested = keras.tree.pack_sequence_as(structure(), flat)
        return fetched(detector.detections(nested, ops.convert_to_tensor(sizes)))

    @cache
    def structure():
        """Return a nest in the order of the network's outputs."""
        size = detector.image_size
        nothing = np.zeros((1, *size, 3), np.uint8), np.int32([size])
        return detector.outputs(*map(ops.convert_to_tensor, nothing))

    return Predictor(detect, outputs, postprocess)


def _backend_predictor(detector: DetectionModel, **settings: Any) -> Predictor:
    """Return the detector as programs of the Keras backend, which are compiled at their first call."""

    def detect(images, sizes):
        return detector.detections(detector.outputs(images, sizes), sizes)

    programs = (detect, detector.outputs, detector.detections)
    return Predictor(*(device.compiled(program, detector.network, **settings) for program in programs))


def _backend_network(detector: DetectionModel, constants: device.Weights | None) -> Callable[..., list[Any]]:
    """Return the network, run by the Keras backend, as a `Network`."""
    program = device.compiled(
        lambda images, sizes: detector.postprocessing.host_outputs(detector.outputs(images, sizes)),
        detector.network,
        use_xla=False,
        constants=constants,
    )

    def run(images: np.ndarray, sizes: np.ndarray, postprocess: Postprocess[Result]) -> list[Result]:
        outputs = zip(*map(np.asarray, program(images, sizes)), strict=True)
        return [postprocess(*image) for image in zip(outputs, sizes, strict=True)]

    return run
