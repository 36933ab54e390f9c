"""Random augmentations of training images and their objects, seeded.

Each draws a `Crop`, which depends only on the seed, the image's size and its boxes, and applies it to pixels and boxes.
All place the image at the top left of the network input and pad with zeros; the device zeroes the padding again after
normalization.
"""

from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from dataset.input.crop import Crop, Window, crop_boxes, crop_image, decode_window
from dataset.input.resize import ResizeRule, fitting_scale, scaled_by
from object_detection.structures import Tensor


class Augmentation(Protocol):
    """Interface of an augmentation."""

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw the crop of an image of [2] int32 height and width, deterministic for a `seed`, [2] integers.

        `boxes` [N, 4] float32 yxyx, fractions of the image, are the training objects.
        """

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in input pixels, and which are left; see `crop_boxes`."""

    def image(self, encoded: Tensor, crop: Crop, *, window: Window = decode_window) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8; `window` decodes the part that the crop needs."""


class Cropping:
    """Base class of augmentations that crop."""

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in input pixels, and which are left; see `crop_boxes`."""
        return crop_boxes(boxes, crop, source_size=source_size)


@dataclass(frozen=True)
class ScaleJitterCrop(Cropping):
    """EfficientDet's augmentation: random scale, random crop to the input size, random horizontal flip."""

    size: tuple[int, int]  # H, W of the network input
    jitter_min: float = 0.1
    jitter_max: float = 2.0
    flip_probability: float = 0.5

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw flip, scale and place as the reference does.

        r ~ U(jitter); the image is scaled to fit int(r H), int(r W); if it is then larger than H, W, a uniformly placed
        crop is taken. The reference resizes the image and crops the result. Here the crop is made in whole pixels of
        the original, and only this window is resampled: it differs by at most half a pixel, and boxes follow it
        exactly.
        """
        draws = tf.random.stateless_uniform([4], seed=seed)
        factor = self.jitter_min + (self.jitter_max - self.jitter_min) * draws[0]
        target = tf.floor(factor * tf.constant(self.size, tf.float32))
        scaled = scaled_by(source_size, fitting_scale(source_size, tf.maximum(target, 1.0)))
        crop_size = tf.minimum(scaled, tf.constant(self.size))
        share = tf.cast(crop_size, tf.float32) / tf.cast(scaled, tf.float32)
        window = tf.cast(tf.round(share * tf.cast(source_size, tf.float32)), tf.int32)
        window = tf.clip_by_value(window, 1, source_size)
        room = tf.cast(source_size - window + 1, tf.float32)
        offset = tf.minimum(tf.cast(room * draws[1:3], tf.int32), source_size - window)
        return Crop(offset=offset, window=window, size=crop_size, flip=draws[3] < self.flip_probability)

    def image(self, encoded: Tensor, crop: Crop, *, window: Window = decode_window) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8."""
        return crop_image(encoded, crop, size=self.size, window=window)


@dataclass(frozen=True)
class ResizeAndFlip(Cropping):
    """Augmentation of RetinaNet and Mask R-CNN: the resize rule of evaluation and a random horizontal flip."""

    resize: ResizeRule
    flip_probability: float = 0.5

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""
        return self.resize.size

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Return a crop of the full image, mirrored or not."""
        flip = tf.random.stateless_uniform([], seed=seed) < self.flip_probability
        return self.resize.whole(source_size)._replace(flip=flip)

    def image(self, encoded: Tensor, crop: Crop, *, window: Window = decode_window) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8, resampled by the resize rule."""
        whole = window(encoded, crop)
        # The image is mirrored before resizing, so that padding remains at the right.
        mirrored = tf.cond(crop.flip, lambda: whole[:, ::-1], lambda: whole)
        return self.resize.resample(mirrored, crop.size)
