"""Random vertical flips and rotations by 90 degrees, for images without a preferred orientation."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dataset.input.composition import View
from object_detection.structures import Tensor


@dataclass(frozen=True, kw_only=True)
class RandomOrientation:
    """Flips the valid area of a view vertically and transposes it, each with probability 0.5.

    Together with the horizontal flip of the augmentation these are all eight orientations. A view is transposed only
    if its valid area then fits into the input, which a square input guarantees.
    """

    flip: bool  # flip vertically
    rotate: bool  # transpose

    def __call__(self, view: View, seed: Tensor) -> View:
        """Orient a view, deterministically for a seed, [2] integers."""
        draws = tf.random.stateless_uniform([2], seed=seed) < 0.5
        fits = tf.reduce_all(view.size[::-1] <= tf.shape(view.image)[:2])
        flip, transpose = tf.logical_and(draws[0], self.flip), draws[1] & self.rotate & fits
        image = tf.numpy_function(_oriented, [view.image, view.size, flip, transpose], tf.uint8, stateful=False)
        low, high = tf.split(view.objects.boxes, 2, axis=-1)
        height = tf.cast(view.size[0], tf.float32)
        boxes = tf.stack([height - high[:, 0], low[:, 1], height - low[:, 0], high[:, 1]], axis=-1)
        boxes = tf.where(flip, boxes, view.objects.boxes)
        masks = tf.where(flip, view.objects.masks[:, ::-1], view.objects.masks)
        return view._replace(
            image=tf.ensure_shape(image, view.image.shape),
            size=tf.where(transpose, view.size[::-1], view.size),
            objects=view.objects._replace(
                boxes=tf.where(transpose, tf.gather(boxes, [1, 0, 3, 2], axis=-1), boxes),
                masks=tf.where(transpose, tf.transpose(masks, [0, 2, 1]), masks),
            ),
            scale=tf.where(transpose, view.scale[::-1], view.scale),
        )


def _oriented(image: np.ndarray, size: np.ndarray, flip: np.ndarray, transpose: np.ndarray) -> np.ndarray:
    if not (flip or transpose):
        return image
    valid = image[: size[0], : size[1]]
    valid = valid[::-1] if flip else valid
    valid = valid.transpose(1, 0, 2) if transpose else valid
    oriented = np.zeros_like(image)
    oriented[: valid.shape[0], : valid.shape[1]] = valid
    return oriented
