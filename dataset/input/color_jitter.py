"""Random color augmentation: brightness, contrast, saturation and hue, seeded."""

import math
from dataclasses import dataclass

import cv2
import numpy as np
import tensorflow as tf

from object_detection.structures import Tensor

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
