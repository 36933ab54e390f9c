"""Detection as one compiled program: uint8 images in, boxes in original pixels out."""

from collections.abc import Callable, Sequence

import numpy as np
from keras import ops

from efficientdet import device
from efficientdet.exported_network import ExportedNetwork
from model.dense_detector import DenseDetector
from model.detector import Detector
from object_detection.box_geometry import clip_boxes
from object_detection.host_suppression import detections_on_host, stacked
from object_detection.structures import Detections, Tensor

Predict = Callable[[Tensor, Tensor, Tensor], Detections]


def build_predict(
    detector: Detector, *, compiled: bool, runtime: str = "keras", int8_images: Sequence[str] = ()
) -> Predict:
    """A function of images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`).

    -> Detections in pixels of the original images, clipped to them. With the weights that the network has at each call;
    another `runtime` than Keras keeps those that it has now, in 8 bits where there are `int8_images`.
    """
    if runtime != "keras":
        return exported_predict(detector, detector_network(detector, runtime=runtime, int8_images=int8_images))
    return device.compiled(lambda images, sizes, scales: detections_in_original(detector, images, sizes, scales),
                           detector.network, use_xla=compiled)


def detections_in_original(detector: Detector, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
    """Detect, clip to the part that is image, scale to the original."""
    detections = detector.detect(images, sizes)
    boxes = clip_boxes(detections.boxes, sizes)
    return detections._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])


def detector_network(detector: DenseDetector, *, runtime: str, int8_images: Sequence[str] = ()) -> ExportedNetwork:
    """The detector's network as it is now, in another runtime; with files to take ranges from, in 8 bits."""
    from efficientdet.onnx_export import onnx_model

    model = onnx_model(detector)
    if int8_images:
        from efficientdet.quantisation import quantised

        model = quantised(model, int8_images, image_size=detector.config.image_size)
    return ExportedNetwork(model.SerializeToString(), runtime=runtime)


def exported_predict(detector: DenseDetector, network: ExportedNetwork) -> Predict:
    """`build_predict` around a network that another runtime runs."""
    def predict(images, sizes, scales):
        images, sizes, scales = np.asarray(images), np.asarray(sizes, np.int32), np.asarray(scales)
        found = stacked(network(images, sizes, lambda outputs: detections_on_host(
            outputs, detector.anchors, config=detector.config.suppression)))
        limits = np.tile(sizes.astype(np.float32), 2)[:, None]
        return found._replace(boxes=np.clip(found.boxes, 0, limits) * np.tile(scales, 2)[:, None])

    return predict
