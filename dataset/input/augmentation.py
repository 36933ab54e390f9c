"""Random augmentations of training images and their objects, seeded.

Each draws a `Crop`, which depends only on the seed, the image's size and its boxes, and applies it to pixels and boxes.
All place the image at the top left of the network input and pad with zeros; the device zeroes the padding again after
normalization.
"""

import math
from dataclasses import dataclass, field

import cv2
import numpy as np
import tensorflow as tf

from dataset.input.crop import Crop, crop_boxes, crop_image, decode_window
from dataset.input.resize import ResizeRule, fitting_scale, scaled_by
from dataset.input.tiling import Tiling
from object_detection.structures import Tensor

_ANYWHERE = 0.2  # share of training tiles at a uniform place, which may show no object
_WHOLE = 0.2  # share of complete images, if the tiling has them


class Augmentation:
    """Base class of augmentations, which crop; `size` is H, W of the network input."""

    size: tuple[int, int]

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw the crop of an image of [2] int32 height and width, deterministic for a `seed`, [2] integers.

        `boxes` [N, 4] float32 yxyx, fractions of the image, are the training objects.
        """
        raise NotImplementedError

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes in input pixels, and which are left; see `crop_boxes`."""
        return crop_boxes(boxes, crop, source_size=source_size)

    def image(self, encoded: Tensor, crop: Crop) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8."""
        return crop_image(encoded, crop, size=self.size)


@dataclass(frozen=True)
class ScaleJitterCrop(Augmentation):
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


@dataclass(frozen=True)
class ResizeAndFlip(Augmentation):
    """Augmentation of RetinaNet and Mask R-CNN: the resize rule of evaluation and a random horizontal flip."""

    resize: ResizeRule
    flip_probability: float = 0.5

    @property
    def size(self) -> tuple[int, int]:  # type: ignore[override]
        """H, W of the network input."""
        return self.resize.size

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Return a crop of the full image, mirrored or not."""
        flip = tf.random.stateless_uniform([], seed=seed) < self.flip_probability
        return self.resize.whole(source_size)._replace(flip=flip)

    def image(self, encoded: Tensor, crop: Crop) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8, resampled by the resize rule."""
        whole = decode_window(encoded, crop)
        # The image is mirrored before resizing, so that padding remains at the right.
        mirrored = tf.cond(crop.flip, lambda: whole[:, ::-1], lambda: whole)
        return self.resize.resample(mirrored, crop.size)


@dataclass(frozen=True)
class RandomTile(ResizeAndFlip):
    """Augmentation of training on tiles: a window as large as a tile, divided by a random scale, and a random flip.

    Most windows contain an object that is drawn first, so that few are empty however sparse the objects are.
    """

    tiling: Tiling = field(default_factory=lambda: Tiling(size=(512, 512)))
    jitter_min: float = 1.0
    jitter_max: float = 1.0

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw scale, place and flip; without `boxes`, and for a share of the tiles, the place is uniform."""
        draws = tf.random.stateless_uniform([7], seed=seed)
        tile, sides = tf.constant(self.tiling.size, tf.float32), tf.cast(source_size, tf.float32)
        factor = self.jitter_min + (self.jitter_max - self.jitter_min) * draws[0]
        window = tf.clip_by_value(tf.cast(tf.round(tile / factor), tf.int32), 1, source_size)
        room = sides - tf.cast(window, tf.float32)
        low, high = tf.zeros([2]), room
        if boxes is not None:
            first, last = _range_around(boxes, draws[1], window=window, sides=sides)
            around = (tf.shape(boxes)[0] > 0) & (draws[2] >= _ANYWHERE)
            low, high = tf.where(around, first, low), tf.where(around, last, high)
        offset = tf.clip_by_value(low + (high - low) * draws[3:5], 0.0, room)
        ratio = tf.cast(self.resize.scaled_size(tf.constant(self.tiling.size)), tf.float32) / tile * factor
        size = tf.cast(tf.round(ratio * tf.cast(window, tf.float32)), tf.int32)
        crop = Crop(
            offset=tf.cast(tf.round(offset), tf.int32),
            window=window,
            size=tf.clip_by_value(size, 1, tf.constant(self.size)),
            flip=draws[5] < self.flip_probability,
        )
        if not self.tiling.whole:
            return crop
        whole = self.resize.whole(source_size)._replace(flip=crop.flip)
        is_whole = draws[6] < _WHOLE
        return Crop(*(tf.where(is_whole, one, other) for one, other in zip(whole, crop, strict=True)))


def _range_around(boxes: Tensor, draw: Tensor, *, window: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last offset [2] float32 at which a window shows a drawn box, or the center of a larger one.

    boxes: [N, 4] yxyx as fractions; zeros are returned without one.
    """
    count, window = tf.shape(boxes)[0], tf.cast(window, tf.float32)
    number = tf.minimum(tf.cast(draw * tf.cast(count, tf.float32), tf.int32), count - 1)
    box = tf.reshape(tf.concat([boxes, tf.zeros([1, 4])], axis=0)[tf.maximum(number, 0)], [2, 2]) * sides
    first, last = box[1] - window, box[0]
    middle = (first + last) / 2
    fits = first <= last
    return tf.where(fits, first, middle), tf.where(fits, last, middle)


_VALUES = np.arange(256, dtype=np.float32)
_ROUNDS_DOWN = -0.499  # offset that makes OpenCV round down, as Pillow does


@dataclass(frozen=True, kw_only=True)
class ColorJitter:
    """torchvision's ColorJitter for uint8 images: each change once, in random order.

    brightness, contrast and saturation: the factor is uniform in 1 - x .. 1 + x, at least 0, relative to black, to the
    image's mean gray and to each pixel's gray. hue: the rotation is uniform in -x .. x of the color circle. 0 disables
    a change.
    """

    brightness: float = 0.125
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.05

    def __call__(self, image: Tensor, size: Tensor, seed: Tensor) -> Tensor:
        """Jitter the colors of [H, W, 3] uint8, deterministically for a seed, [2] integers.

        `size`: [2] int32, height and width of the valid area; the rest is padding and remains unchanged.
        """
        draws = tf.random.stateless_uniform([8], seed=seed)
        changed = tf.numpy_function(self._of_valid_area, [image, size, draws], tf.uint8, stateful=False)
        return tf.ensure_shape(changed, image.shape)

    def _of_valid_area(self, image: np.ndarray, size: np.ndarray, draws: np.ndarray) -> np.ndarray:
        valid = np.ascontiguousarray(image[: size[0], : size[1]])
        changed = self.changed(valid, draws[:4], draws[4:])
        if changed.shape == image.shape:
            return changed
        padded = np.zeros_like(image)
        padded[: size[0], : size[1]] = changed
        return padded

    def changed(self, image: np.ndarray, draws: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Apply draws [4], uniform in 0 .. 1 (brightness, contrast, saturation, hue), in the order of `order` [4]."""
        changes = (_adjust_brightness, _adjust_contrast, _adjust_saturation, _adjust_hue)
        amounts = (self.brightness, self.contrast, self.saturation, self.hue)
        for number in np.argsort(order, kind="stable"):
            if not amounts[number]:
                continue
            change = amounts[number] * (2 * float(draws[number]) - 1)
            image = changes[number](image, change if changes[number] is _adjust_hue else max(1 + change, 0.0))
        return image


def _adjust_brightness(image: np.ndarray, factor: float) -> np.ndarray:
    return cv2.LUT(image, _levels(factor * _VALUES))


def _adjust_contrast(image: np.ndarray, factor: float) -> np.ndarray:
    gray = math.floor(cv2.mean(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY))[0] + 0.5)
    return cv2.LUT(image, _levels(gray + factor * (_VALUES - gray)))


def _adjust_saturation(image: np.ndarray, factor: float) -> np.ndarray:
    gray = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return cv2.addWeighted(image, factor, gray, 1 - factor, _ROUNDS_DOWN)


def _adjust_hue(image: np.ndarray, share: float) -> np.ndarray:
    """Rotate the hues by a fraction of the color circle, in steps of 1/256."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV_FULL)
    hsv[..., 0] += np.uint8(round(share * 256) % 256)  # wraps around
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL)


def _levels(values: np.ndarray) -> np.ndarray:
    return np.clip(values, 0, 255).astype(np.uint8)
