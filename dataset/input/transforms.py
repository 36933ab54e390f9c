"""Pixels and boxes from the original image to the network input: the letterbox of evaluation, the crop of training.

Both resample with half-pixel bilinear interpolation without antialiasing, as the published checkpoints were trained
(google/automl), round to uint8, place the image at the top left and leave zeros elsewhere; the device zeroes the
padding again after normalisation. The letterbox is TensorFlow's, as it is part of exported models; the crop is OpenCV's,
which takes half the time and is within a grey level. h, w are the pixels of the original image, H, W those of the
network input.
"""

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
import tensorflow as tf

from object_detection.structures import Tensor

# Of a box that the crop cuts, at least this much must stay in each direction: a sliver thinner than a pixel shows
# nothing to learn, while every anchor that it is forced upon is told that it does.
MINIMUM_BOX_SIDE = 1.0

cv2.setNumThreads(1)  # tf.data has a thread for each core, each with an image of its own


class Crop(NamedTuple):
    """A window of whole pixels of the original image and the size it is resampled to; each [2] int32 (y, x)."""

    offset: Tensor
    window: Tensor
    size: Tensor
    flip: Tensor  # [] bool, mirrored left to right


def letterbox(image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The one preprocessing of evaluation, inference and the exported model: the whole image, as large as fits.

    [h, w, 3] uint8 and (H, W) -> [H, W, 3] uint8; [2] int32 height and width of the part that is image; [2] float32
    original pixels per input pixel, y and x. They differ: sides are rounded down to whole pixels, one of them by up to a
    pixel. The reference scales boxes by one number, which displaces them by that much (AP 0.92 for 0.99 at 128 pixels).
    """
    source_size = tf.shape(image)[:2]
    scale = _fitting_scale(source_size, tf.cast(tf.constant(size), tf.float32))
    scaled = tf.minimum(_scaled_size(source_size, scale), tf.constant(size))
    resized = _resize(image, scaled)
    return _pad(resized, size), scaled, tf.cast(source_size, tf.float32) / tf.cast(scaled, tf.float32)


def image_size(encoded: Tensor) -> Tensor:
    """Height and width of an encoded image, [2] int32, without decoding a JPEG's pixels. EXIF rotation is ignored."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded)[:2],
        lambda: tf.shape(decode_image(encoded))[:2],
    )


def decode_image(encoded: Tensor) -> Tensor:
    """JPEG, PNG, BMP or the first frame of a GIF -> [h, w, 3] uint8."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def draw_crop(
    source_size: Tensor,
    *,
    size: tuple[int, int],
    jitter: tuple[float, float],
    flip_probability: float,
    seed: Tensor,
) -> Crop:
    """Draw flip, scale and place of a training crop as the reference does (a function of `seed`, [2] integers).

    r ~ U(jitter); the image is scaled to fit int(r H), int(r W); of what is then larger than H, W a uniformly placed
    part is taken. Where the reference resizes all and cuts the result, the cut is made in whole pixels of the original
    here and only the window is resampled: the window is at most half a pixel longer or shorter, and boxes follow it
    exactly.
    """
    draws = tf.random.stateless_uniform([4], seed=seed)
    factor = jitter[0] + (jitter[1] - jitter[0]) * draws[0]
    target = tf.floor(factor * tf.constant(size, tf.float32))
    scaled = _scaled_size(source_size, _fitting_scale(source_size, tf.maximum(target, 1.0)))
    crop_size = tf.minimum(scaled, tf.constant(size))
    share = tf.cast(crop_size, tf.float32) / tf.cast(scaled, tf.float32)
    window = tf.cast(tf.round(share * tf.cast(source_size, tf.float32)), tf.int32)
    window = tf.clip_by_value(window, 1, source_size)
    room = tf.cast(source_size - window + 1, tf.float32)
    offset = tf.minimum(tf.cast(room * draws[1:3], tf.int32), source_size - window)
    return Crop(offset=offset, window=window, size=crop_size, flip=draws[3] < flip_probability)


def decode_window(encoded: Tensor, crop: Crop) -> Tensor:
    """The window of an encoded image, of a JPEG without decoding the rest: [*crop.window, 3] uint8."""
    place = tf.concat([crop.offset, crop.window], axis=0)
    (top, left), (bottom, right) = tf.unstack(crop.offset), tf.unstack(crop.offset + crop.window)
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_and_crop_jpeg(encoded, place, channels=3),
        lambda: decode_image(encoded)[top:bottom, left:right],
    )


def crop_image(encoded: Tensor, crop: Crop, *, size: tuple[int, int],
               window: Callable[[Tensor, Crop], Tensor] = decode_window) -> Tensor:
    """Resample the window of an encoded image, mirror it and pad it: -> [H, W, 3] uint8."""
    image = tf.numpy_function(_resampled, [window(encoded, crop), crop.size, crop.flip, size], tf.uint8, stateful=False)
    return tf.ensure_shape(image, [*size, 3])


def _resampled(window: np.ndarray, window_size: np.ndarray, flip: np.ndarray, size: np.ndarray) -> np.ndarray:
    height, width = window_size.tolist()
    image = np.zeros((*size, 3), np.uint8)
    inside = image[:height, :width]
    cv2.resize(window, (width, height), dst=inside, interpolation=cv2.INTER_LINEAR)
    if flip:
        cv2.flip(inside, 1, dst=inside)
    return image


def crop_boxes(boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
    """Boxes under a crop.

    [N, 4] float32 yxyx as fractions of the original image -> [N, 4] float32 yxyx input pixels, clipped to the part that
    is image, and [N] bool, whether enough of the box is left: MINIMUM_BOX_SIDE pixels in each direction, or all of it
    if it is thinner than that uncut.
    """
    ratio = tf.cast(crop.size, tf.float32) / tf.cast(crop.window, tf.float32)
    corners = tf.reshape(boxes, [-1, 2, 2]) * tf.cast(source_size, tf.float32)  # [N, (min, max), (y, x)]
    corners = (corners - tf.cast(crop.offset, tf.float32)) * ratio
    limits = tf.cast(crop.size, tf.float32)
    clipped = tf.clip_by_value(corners, 0.0, limits)
    whole_sides, sides = corners[:, 1] - corners[:, 0], clipped[:, 1] - clipped[:, 0]
    kept = tf.reduce_all((sides > 0.0) & (sides >= tf.minimum(MINIMUM_BOX_SIDE, 0.999 * whole_sides)), axis=-1)
    low, high = clipped[:, 0], clipped[:, 1]
    mirrored_low = tf.stack([low[:, 0], limits[1] - high[:, 1]], axis=-1)
    mirrored_high = tf.stack([high[:, 0], limits[1] - low[:, 1]], axis=-1)
    plain = tf.concat([low, high], axis=-1)
    return tf.where(crop.flip, tf.concat([mirrored_low, mirrored_high], axis=-1), plain), kept


def _fitting_scale(source_size: Tensor, target: Tensor) -> Tensor:
    """Input pixels per original pixel at which the image just fits the target: [2] int32, [2] float32 -> []."""
    return tf.reduce_min(target / tf.cast(source_size, tf.float32))


def _scaled_size(source_size: Tensor, scale: Tensor) -> Tensor:
    """[2] int32, at least 1. Float32 and rounded down, even where 479.99997 was meant as 480: as the reference."""
    return tf.maximum(tf.cast(tf.cast(source_size, tf.float32) * scale, tf.int32), 1)


def _resize(image: Tensor, size: Tensor) -> Tensor:
    """[h, w, 3] uint8 -> [*size, 3] uint8, half-pixel bilinear, to the nearest grey level."""
    resized = tf.image.resize(image, size, method="bilinear", antialias=False)
    return tf.cast(resized + 0.5, tf.uint8)  # rounds like tf.round, which takes twice as long


def _pad(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Zeros at the bottom and at the right: -> [H, W, 3]."""
    height, width = tf.unstack(tf.shape(image)[:2])
    rows = tf.reshape(image, [height, width * 3])  # padding two dimensions takes a third of the time of padding three
    padded = tf.pad(rows, [[0, size[0] - height], [0, (size[1] - width) * 3]])
    return tf.reshape(padded, [*size, 3])
