"""SSD's augmentation: colors, and a crop with a minimum object IoU (Liu et al. 2016, 2.2; MLPerf's reference)."""

import math
from dataclasses import dataclass, field

import cv2
import numpy as np
import tensorflow as tf
from PIL import Image

from dataset.input.augmentation import Augmentation
from dataset.input.crop import Crop, crop_boxes, decode_window
from object_detection.structures import Tensor

_NO_RULE = -1.0  # below every overlap: no constraint
_LEAST_OVERLAPS = (0.1, 0.3, 0.5, 0.7, 0.9, _NO_RULE)  # options besides no crop, one of which is drawn
_LEAST_SIDE, _FLATTEST = 0.3, 2.0  # minimum side of a crop, as a fraction of the image's, and maximum aspect ratio
_FLIP, _FIRST_OPTIONS = 0, 2  # independent random streams; 1 is that of the color jitter
# Options per round, and rounds. One option in seven is no crop: the probability that none is chosen is about 1e-64.
_AT_ONCE, _MOST_TIMES = 16, 60


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


@dataclass(frozen=True)
class OverlapCrop(Augmentation):
    """One of seven options: the full image, or a random part whose IoU with every object is above 0.1, 0.3, .. or any.

    A part is drawn `tries` times; if none fits, another option is drawn. Objects whose center is strictly inside are
    kept; there is at least one. The drawn part is rounded to whole pixels first, so that boxes and pixels are cropped
    alike (the reference rounds only pixels, a difference of less than one). Images without objects are not cropped. The
    part is then resampled to `size` with antialiasing, as in Pillow, and randomly mirrored.
    """

    size: tuple[int, int]  # H, W of the network input
    tries: int = 1
    flip_probability: float = 0.5
    color_jitter: ColorJitter | None = field(default_factory=ColorJitter)

    def draw(self, source_size: Tensor, seed: Tensor, boxes: Tensor | None = None) -> Crop:
        """Draw options until a part fits the objects; objects without area are ignored."""
        flip = tf.random.stateless_uniform([], seed=_seed_of(seed, _FLIP)) < self.flip_probability
        offset, window = tf.zeros_like(source_size), source_size
        if boxes is not None:
            corners = _in_pixels(boxes, source_size)
            has_area = tf.reduce_all(corners[:, 1] > corners[:, 0], axis=-1)
            offset, window = self._drawn(source_size, seed, tf.boolean_mask(corners, has_area))
        return Crop(offset=offset, window=window, size=tf.constant(self.size), flip=flip)

    def _drawn(self, source_size: Tensor, seed: Tensor, corners: Tensor) -> tuple[Tensor, Tensor]:
        """Return offset and window of the first option that fits the objects; options are evaluated in parallel."""

        def draw_options(number, offset, window, is_chosen):
            draws = tf.random.stateless_uniform([_AT_ONCE, 1 + 4 * self.tries], seed=_seed_of(seed, number))
            options = tf.cast(draws[:, 0] * (1 + len(_LEAST_OVERLAPS)), tf.int32)
            least = tf.repeat(tf.gather(tf.constant((_NO_RULE, *_LEAST_OVERLAPS)), options), self.tries)
            offsets, windows, flat = _parts(tf.reshape(draws[:, 1:], [-1, 4]), source_size)
            fits = tf.logical_and(_fit(offsets, windows, corners, least), tf.logical_not(flat))
            whole = tf.repeat(options == 0, self.tries)  # fits at its first try
            fits = tf.logical_or(fits, whole)
            first = tf.argmax(fits)
            offset = tf.where(whole[first], 0, offsets[first])
            return number + 1, offset, tf.where(whole[first], source_size, windows[first]), tf.reduce_any(fits)

        _, offset, window, is_chosen = tf.while_loop(
            lambda number, offset, window, is_chosen: tf.logical_not(is_chosen),
            draw_options,
            (tf.constant(_FIRST_OPTIONS), tf.zeros_like(source_size), source_size, tf.shape(corners)[0] == 0),
            maximum_iterations=_MOST_TIMES,
            parallel_iterations=1,
        )
        return tf.where(is_chosen, offset, 0), tf.where(is_chosen, window, source_size)

    def boxes(self, boxes: Tensor, crop: Crop, *, source_size: Tensor) -> tuple[Tensor, Tensor]:
        """Return boxes in input pixels and which of them are kept: those whose center is strictly inside the crop."""
        moved, _ = crop_boxes(boxes, crop, source_size=source_size)
        has_area = tf.reduce_all(moved[:, 2:] > moved[:, :2], axis=-1)
        inside = _centers_inside(crop.offset[None], crop.window[None], _in_pixels(boxes, source_size))[0]
        return moved, tf.logical_and(has_area, inside)

    def image(self, encoded: Tensor, crop: Crop) -> Tensor:
        """Return the encoded image as network input, [H, W, 3] uint8."""
        window = decode_window(encoded, crop)
        image = tf.numpy_function(_resampled, [window, crop.size, crop.flip], tf.uint8, stateful=False)
        return tf.ensure_shape(image, [*self.size, 3])


def _seed_of(seed: Tensor, part: int | Tensor) -> Tensor:
    return tf.random.experimental.stateless_fold_in(seed, part)


def _in_pixels(boxes: Tensor, source_size: Tensor) -> Tensor:
    """Convert boxes [N, 4] from fractions to clipped corners in pixels: [N, (min, max), (y, x)] float32."""
    return tf.clip_by_value(tf.reshape(boxes, [-1, 2, 2]), 0.0, 1.0) * tf.cast(source_size, tf.float32)


def _parts(draws: Tensor, source_size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute T parts of the image from draws [T, 4] of height, width, top and left.

    Returns offsets and windows, [T, 2] int32 pixels, and which aspect ratios are out of range, [T] bool.
    """
    source = tf.cast(source_size, tf.float32)
    sides = _LEAST_SIDE + (1.0 - _LEAST_SIDE) * draws[:, :2]
    starts = draws[:, 2:] * (1.0 - sides)
    offsets = tf.minimum(tf.cast(starts * source, tf.int32), source_size - 1)
    windows = tf.maximum(tf.cast((starts + sides) * source, tf.int32) - offsets, 1)
    ratios = sides[:, 1] / sides[:, 0]
    return offsets, windows, tf.logical_or(ratios > _FLATTEST, ratios < 1.0 / _FLATTEST)


def _fit(offsets: Tensor, windows: Tensor, corners: Tensor, least_overlap: Tensor) -> Tensor:
    """Return which of T parts contain a center and have more than the least IoU [T] with all objects [N, 2, 2]."""
    low, high = tf.cast(offsets, tf.float32)[:, None], tf.cast(offsets + windows, tf.float32)[:, None]  # [T, 1, 2]
    shared = tf.maximum(tf.minimum(high, corners[:, 1]) - tf.maximum(low, corners[:, 0]), 0.0)
    intersection = tf.reduce_prod(shared, axis=-1)  # [T, N]
    union = tf.reduce_prod(high - low, axis=-1) + tf.reduce_prod(corners[:, 1] - corners[:, 0], axis=-1) - intersection
    overlaps_all = tf.reduce_all(intersection / union > least_overlap[:, None], axis=-1)
    return tf.logical_and(overlaps_all, tf.reduce_any(_centers_inside(offsets, windows, corners), axis=-1))


def _centers_inside(offsets: Tensor, windows: Tensor, corners: Tensor) -> Tensor:
    """Return whether the centers of objects [N, 2, 2] are strictly inside each of T parts: [T, N] bool."""
    centers = tf.reduce_mean(corners, axis=1)
    low, high = tf.cast(offsets, tf.float32)[:, None], tf.cast(offsets + windows, tf.float32)[:, None]
    return tf.reduce_all(tf.logical_and(centers > low, centers < high), axis=-1)


def _resampled(window: np.ndarray, size: np.ndarray, flip: np.ndarray) -> np.ndarray:
    height, width = size.tolist()
    resized = np.asarray(Image.fromarray(window).resize((width, height), Image.Resampling.BILINEAR))
    return np.ascontiguousarray(resized[:, ::-1]) if flip else resized


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
