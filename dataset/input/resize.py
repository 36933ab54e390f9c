"""Resize rules, which convert an image of any size to the network input.

A rule is called with an image and returns the three tensors that networks and boxes need; `size` is fixed, so that
programs are compiled once. By default rules resample as in the training of the published EfficientDet checkpoints
(google/automl): bilinear at half-pixel centers, without antialiasing. The pixels are TensorFlow's, because a rule is
part of exported models. h, w are the size of the original image, H, W that of the network input.
"""

import math
from typing import Any

import tensorflow as tf

from dataset.input.crop import Crop
from dataset.input.host_resize import HostResize, ResizeSettings
from object_detection.structures import Tensor


class ResizeRule(ResizeSettings):
    """A rule in TensorFlow; antialias and half_pixel_centers must match the training of the network."""

    def scaled_size(self, source_size: Tensor) -> Tensor:
        """Height and width of the part that is image, [2] int32, rounded down."""
        if self.kind == "stretch":
            return tf.constant(self.size) + tf.zeros_like(source_size)
        if self.kind == "letterbox":
            scale = fitting_scale(source_size, tf.cast(tf.constant(self.size), tf.float32))
            return tf.minimum(scaled_by(source_size, scale), tf.constant(self.size))
        sides = tf.cast(source_size, tf.float32)
        scale = tf.minimum(self.shorter / tf.reduce_min(sides), self.longer / tf.reduce_max(sides))
        return tf.minimum(scaled_by(source_size, scale), self.longer)

    def whole(self, source_size: Tensor) -> Crop:
        """Return the crop of the full image to its position in the input."""
        return Crop(
            offset=tf.zeros_like(source_size),
            window=source_size,
            size=self.scaled_size(source_size),
            flip=tf.constant(False),
        )

    def resample(self, image: Tensor, scaled: Tensor) -> Tensor:
        """[h, w, 3] uint8 -> [H, W, 3] uint8: resized to `scaled` [2] int32 at the top left, 0 elsewhere."""
        if self.half_pixel_centers:
            resized = tf.image.resize(image, scaled, method="bilinear", antialias=self.antialias)
        else:
            resized = tf.raw_ops.ResizeBilinear(images=image[None], size=scaled)[0]
        # Equal to tf.round, which takes twice as long.
        return _padded(tf.cast(resized + 0.5, tf.uint8), self.size)

    def __call__(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Resize an image [h, w, 3] uint8.

        Returns [H, W, 3] uint8; [2] int32 height and width of the valid area; [2] float32 original pixels per input
        pixel, y and x, which differ because sides are rounded to whole pixels. The reference scales boxes by one
        number, which displaces them by up to a pixel (AP 0.92 instead of 0.99 at 128 pixels).
        """
        source_size = tf.shape(image)[:2]
        scaled = self.scaled_size(source_size)
        return self.resample(image, scaled), scaled, tf.cast(source_size, tf.float32) / tf.cast(scaled, tf.float32)


def letterbox(size: tuple[int, int], **resampling: Any) -> ResizeRule:
    """Return EfficientDet's rule: the full image, as large as fits into `size` (H, W), with its aspect ratio."""
    return ResizeRule(kind="letterbox", size=size, **resampling)


def stretch(size: tuple[int, int], **resampling: Any) -> ResizeRule:
    """Return SSD's rule: every image to exactly `size` (H, W), regardless of its aspect ratio."""
    return ResizeRule(kind="stretch", size=size, **resampling)


def fit_within(shorter: int = 800, longer: int = 1333, multiple: int = 32) -> ResizeRule:
    """Return RetinaNet's and Mask R-CNN's rule: the shorter side to `shorter`, unless the longer would exceed `longer`.

    The aspect ratio is kept. The input is a square whose side is `longer`, rounded up to a `multiple` of the network's
    largest stride: wide and tall images have the same shape, so a program is compiled once. Sides are rounded down in
    float32 (torchvision: float64), so one of the two may be a pixel shorter (docs/reference/detectors.md).
    """
    side = math.ceil(longer / multiple) * multiple
    return ResizeRule(kind="fit", size=(side, side), shorter=shorter, longer=longer)


def host_resize(rule: ResizeRule) -> HostResize:
    """Return the same rule in NumPy."""
    return HostResize(**vars(rule))


def fitting_scale(source_size: Tensor, target: Tensor) -> Tensor:
    """Return the scale (input pixels per original pixel) at which [2] int32 fits the target [2] float32: []."""
    return tf.reduce_min(target / tf.cast(source_size, tf.float32))


def scaled_by(source_size: Tensor, scale: Tensor) -> Tensor:
    """Return the scaled size, [2] int32, at least 1; rounded down in float32 as in the reference, even 479.99997."""
    return tf.maximum(tf.cast(tf.cast(source_size, tf.float32) * scale, tf.int32), 1)


def _padded(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad with zeros at the bottom and the right: [H, W, 3]."""
    height, width = tf.unstack(tf.shape(image)[:2])
    rows = tf.reshape(image, [height, width * 3])  # padding two dimensions takes a third of the time of padding three
    padded = tf.pad(rows, [[0, size[0] - height], [0, (size[1] - width) * 3]])
    return tf.reshape(padded, [*size, 3])
