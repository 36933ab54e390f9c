"""Detection as one compiled program: uint8 images in, boxes in original pixels out."""

from collections.abc import Callable

from keras import ops

from efficientdet import device
from model.detector import Detector
from object_detection.box_geometry import clip_boxes
from object_detection.structures import Detections, Tensor

Predict = Callable[[Tensor, Tensor, Tensor], Detections]


def build_predict(detector: Detector, *, compiled: bool) -> Predict:
    """A function of images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`), with the weights that the
    network has at each call. -> Detections in pixels of the original images, clipped to them."""
    return device.compiled(lambda images, sizes, scales: detections_in_original(detector, images, sizes, scales),
                           detector.network, use_xla=compiled)


def detections_in_original(detector: Detector, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
    """Detect, clip to the part that is image, scale to the original."""
    detections = detector.detect(images, sizes)
    boxes = clip_boxes(detections.boxes, sizes)
    return detections._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])
