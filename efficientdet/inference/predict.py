"""Detection: uint8 images in, boxes in original pixels out; one compiled program on an accelerator."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from efficientdet.inference.exported_network import ExportedNetwork
from efficientdet.machine import device
from efficientdet.machine.runtime import accelerator_count
from model.dense_detector import DenseDetector
from model.detector import Detector
from object_detection.box_geometry import clip_boxes
from object_detection.host_suppression import NetworkOutputs, detections_on_host, stacked
from object_detection.structures import Detections, Tensor

Predict = Callable[[Tensor, Tensor, Tensor], Detections]
# Of images [B, H, W, 3] uint8 and sizes [B, 2] int32 what a function makes of the outputs of each image.
Network = Callable[[np.ndarray, np.ndarray, Callable[[NetworkOutputs], Any]], list]


def build_predict(
    detector: Detector, *, compiled: bool, runtime: str = "keras", int8_images: Sequence[str] = ()
) -> Predict:
    """A function of images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`).

    -> Detections in pixels of the original images, clipped to them. With the weights that the network has at each call;
    another `runtime` than Keras keeps those that it has now, in 8 bits where there are `int8_images`.
    """
    network = network_read_on_host(detector, compiled=compiled, runtime=runtime, int8_images=int8_images)
    if network is not None:
        return predict_on_host(detector, network)
    return device.compiled(lambda images, sizes, scales: detections_in_original(detector, images, sizes, scales),
                           detector.network, use_xla=compiled)


def detections_in_original(detector: Detector, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
    """Detect, clip to the part that is image, scale to the original."""
    detections = detector.detections(detector.outputs(images, sizes), sizes)
    boxes = clip_boxes(detections.boxes, sizes)
    return detections._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])


def network_read_on_host(
    detector: DenseDetector, *, compiled: bool, runtime: str = "keras", int8_images: Sequence[str] = ()
) -> Network | None:
    """The detector's network where candidates and suppression are NumPy's; None where one compiled program does it all.

    NumPy's take a fifth of the time of a backend's on a CPU, which picks one box at a time as an accelerator does.
    """
    if runtime != "keras":
        return exported_network(detector, runtime=runtime, int8_images=int8_images)
    return None if compiled or accelerator_count() else _network_of_backend(detector)


def exported_network(detector: DenseDetector, *, runtime: str, int8_images: Sequence[str] = ()) -> ExportedNetwork:
    """The detector's network as it is now, in another runtime; with files to take ranges from, in 8 bits."""
    from efficientdet.export.onnx_file import onnx_model

    model = onnx_model(detector, for_onnxruntime=runtime == "onnxruntime" and not int8_images)
    if int8_images:
        from efficientdet.export.quantisation import quantised

        model = quantised(model, int8_images, image_size=detector.config.image_size)
    return ExportedNetwork(model.SerializeToString(), runtime=runtime)


def _network_of_backend(detector: DenseDetector) -> Network:
    def outputs(images, sizes) -> NetworkOutputs:
        class_logits, box_deltas = detector.outputs(images, sizes)
        return NetworkOutputs(class_logits, box_deltas, ops.max(class_logits, axis=-1))

    run = device.compiled(outputs, detector.network, use_xla=False)
    return lambda images, sizes, read: [
        read(NetworkOutputs(*image)) for image in zip(*map(np.asarray, run(images, sizes)), strict=True)]


def predict_on_host(detector: DenseDetector, network: Network) -> Predict:
    """`build_predict` around a network whose outputs are read in NumPy."""
    def predict(images, sizes, scales):
        images, sizes, scales = np.asarray(images), np.asarray(sizes, np.int32), np.asarray(scales)
        found = stacked(network(images, sizes, lambda outputs: detections_on_host(
            outputs, detector.anchors, config=detector.config.suppression)))
        limits = np.tile(sizes.astype(np.float32), 2)[:, None]
        return found._replace(boxes=np.clip(found.boxes, 0, limits) * np.tile(scales, 2)[:, None])

    return predict
