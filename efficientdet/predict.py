"""Detection as one compiled program: uint8 images in, boxes in original pixels out."""

from collections.abc import Callable

import keras
from keras import ops

from model.detector import Detector
from object_detection.box_geometry import clip_boxes
from object_detection.structures import Detections, Tensor

Predict = Callable[[Tensor, Tensor, Tensor], Detections]


def build_predict(detector: Detector, *, compiled: bool) -> Predict:
    """A function of images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] (see `Batch`), with the weights that the
    network has at each call. -> Detections in pixels of the original images, clipped to them."""
    if keras.backend.backend() == "jax":
        return _jax_predict(detector)
    import tensorflow as tf

    return tf.function(lambda images, sizes, scales: detections_in_original(detector, images, sizes, scales),
                       jit_compile=compiled, reduce_retracing=True, autograph=False)


def detections_in_original(detector: Detector, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
    """Detect, clip to the part that is image, scale to the original."""
    detections = detector.detect(images, sizes)
    boxes = clip_boxes(detections.boxes, sizes)
    return detections._replace(boxes=boxes * ops.concatenate([scales, scales], axis=-1)[:, None])


def _jax_predict(detector: Detector) -> Predict:
    import jax

    variables = detector.network.variables

    @jax.jit
    def predict(values, images, sizes, scales):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return detections_in_original(detector, images, sizes, scales)

    return lambda images, sizes, scales: predict(
        [variable.value for variable in variables], *map(jax.numpy.asarray, (images, sizes, scales)))
