"""Augmentations: what training makes of an image and its objects before it sees them, drawn from a seed.

Each draws a `Crop`, a function of the seed, of the image's size and of its boxes alone, and applies it to pixels and boxes. All
place the image at the top left of the network input and leave zeros elsewhere; the device zeroes the padding again after
normalization.
"""

from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from dataset.input.crop import Crop, Window, crop_boxes, crop_image, decode_window
from dataset.input.resize import ResizeRule, fitting_scale, scaled_by
from object_detection.structures import Tensor


class Augmentation(Protocol):
    """What the input asks of an augmentation."""

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """What to do with an image of [2] int32 height and width: the same for the same `seed`, [2] integers. `boxes` [N, 4]
        float32 yxyx, fractions of the image, are the objects that are to be learned."""

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in input pixels, and which are left; see `crop_boxes`."""

    def image(self, encoded: Tensor, crop: Crop, *, window: Window = decode_window) -> Tensor:
        """The encoded image as network input, [H, W, 3] uint8; `window` decodes what the crop needs of it."""

    def recolored(self, image: Tensor, seed: Tensor) -> Tensor:
        """What `image` made, [H, W, 3] uint8, with other colors; `seed` is that of `draw`."""


class Cropping:
    """What the augmentations have in common."""

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in input pixels, and which are left; see `crop_boxes`."""
        return crop_boxes(boxes, crop, source_size=source_size)

    def recolored(self, image: Tensor, seed: Tensor) -> Tensor:
        """With the colors that it has."""
        return image


@dataclass(frozen=True)
class ScaleJitterCrop(Cropping):
    """EfficientDet's: the image at a random scale, a random part of what is then larger than the input, perhaps mirrored."""

    size: tuple[int, int]  # H, W of the network input
    jitter_min: float = 0.1
    jitter_max: float = 2.0
    flip_probability: float = 0.5

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw flip, scale and place as the reference does.

        r ~ U(jitter); the image is scaled to fit int(r H), int(r W); of what is then larger than H, W a uniformly placed
        part is taken. Where the reference resizes all and cuts the result, the cut is made in whole pixels of the original
        here and only the window is resampled: the window is at most half a pixel longer or shorter, and boxes follow it
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
        """The encoded image as network input, [H, W, 3] uint8."""
        return crop_image(encoded, crop, size=self.size, window=window)


@dataclass(frozen=True)
class ResizeAndFlip(Cropping):
    """What RetinaNet and Mask R-CNN train with: the image as evaluation sees it, perhaps mirrored left to right."""

    resize: ResizeRule
    flip_probability: float = 0.5

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""
        return self.resize.size

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """The whole image, mirrored or not."""
        flip = tf.random.stateless_uniform([], seed=seed) < self.flip_probability
        return self.resize.whole(source_size)._replace(flip=flip)

    def image(self, encoded: Tensor, crop: Crop, *, window: Window = decode_window) -> Tensor:
        """The encoded image as network input, [H, W, 3] uint8, resampled by the rule."""
        whole = window(encoded, crop)
        # Mirrored before it is resized, so that padding stays at the right.
        mirrored = tf.cond(crop.flip, lambda: whole[:, ::-1], lambda: whole)
        return self.resize.resample(mirrored, crop.size)
