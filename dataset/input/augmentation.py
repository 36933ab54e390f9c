"""Random augmentations of training images and their objects, seeded.

Each draws a `Crop`, which depends only on the seed, the image's size and its boxes, and applies it to pixels and boxes.
All place the image at the top left of the network input and pad with zeros; the device zeroes the padding again after
normalization.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import tensorflow as tf

from dataset.input.crop import Crop, crop_boxes, crop_image, decode_window
from dataset.input.resize import ResizeRule, fitting_scale, scaled_by
from dataset.input.tiling import Tiling
from object_detection.structures import Tensor

_ANYWHERE = 0.2  # share of training tiles at a uniform place, which may show no object
_WHOLE = 0.2  # share of complete images, if the tiling has them


# Changes the colors of [H, W, 3] uint8, of which [2] int32 (height, width) is image, for a seed [2]
ColorChange = Callable[[Tensor, Tensor, Tensor], Tensor]


class Augmentation:
    """Base class of augmentations, which crop; `size` is H, W of the network input."""

    size: tuple[int, int]
    color_jitter: ColorChange | None = None

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
    color_jitter: ColorChange | None = None

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
