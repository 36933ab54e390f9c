"""Decode images with TensorFlow. EXIF rotation is ignored: boxes are in the coordinate system of the stored pixels."""

import tensorflow as tf

from object_detection.structures import Tensor


def image_size(encoded: Tensor) -> Tensor:
    """Return height and width of an encoded image, [2] int32, without decoding a JPEG's pixels."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded)[:2],
        lambda: tf.shape(decode_image(encoded))[:2],
    )


def decode_image(encoded: Tensor) -> tf.Tensor:
    """Decode a JPEG, PNG, BMP or the first frame of a GIF: [h, w, 3] uint8."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])
