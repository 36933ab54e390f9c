"""Compositions of several training images into one. Mosaic: parts of four images side by side."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from object_detection.structures import Objects, Tensor
from program_support.errors import InputError

_LEAST_SHARE = (
    0.25  # minimum distance of the point where the four images meet from the border, as a fraction of the side
)
_FILL = (124, 116, 104)  # ImageNet's mean color, zero after normalization as padding is


class View(NamedTuple):
    """An augmented image with its n objects."""

    image: Tensor  # [H, W, 3] uint8
    size: Tensor  # [2] int32, height and width of the valid area
    objects: Objects  # without batch dimension: boxes [n, 4] in input pixels, ...
    scale: Tensor  # [2] float32, original pixels per input pixel


# (number of the image, within: [2] int32 or None) -> its view, cropped to at most `within` pixels
Load = Callable[..., View]


class Composition(Protocol):
    """An augmentation that combines the image at a position of the stream and F further images into one."""

    further_images: int  # F

    def choose(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Choose the F further records of `count` for an image: [F] int64, all -1 for none."""

    def compose(self, load: Load, seed: Tensor) -> View:
        """Return the view composed of 1 + F images, deterministic for a seed, [2] integers."""


@dataclass(frozen=True)
class Mosaic:
    """Parts of four images around a random point (Bochkovskiy et al. 2020, YOLOv4, section 3.4).

    Each image is augmented as usual, so that object sizes are the same as without mosaic; a random part of it, at most
    as large as its quadrant, fills the quadrant from its upper left corner.
    """

    size: tuple[int, int]  # H, W of the network input
    probability: float
    further_images = 3

    def __post_init__(self):
        if not 0 < self.probability <= 1:
            raise InputError(f"probability of a mosaic is {self.probability}; expected above 0, at most 1")

    def choose(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Choose three records with the mosaic probability, else none."""
        chosen = random.integers(count, size=self.further_images)
        return chosen if random.random() < self.probability else np.full_like(chosen, -1)

    def compose(self, load: Load, seed: Tensor) -> View:
        """Compose four views around a random point."""
        size = tf.constant(self.size)
        draws = _LEAST_SHARE + (1 - 2 * _LEAST_SHARE) * tf.random.stateless_uniform([2], seed=seed)
        middle = tf.cast(draws * tf.cast(size, tf.float32), tf.int32)
        (y, x), (height, width) = tf.unstack(middle), self.size
        starts = [tf.stack(start) for start in ((0, 0), (0, x), (y, 0), (y, x))]
        extents = [tf.stack(extent) for extent in ((y, x), (y, width - x), (height - y, x), (height - y, width - x))]
        views = [load(number, within=extent) for number, extent in enumerate(extents)]
        image = tf.numpy_function(
            self._pasted,
            [*starts, *(view.image[: view.size[0], : view.size[1]] for view in views)],
            tf.uint8,
            stateful=False,
        )
        moved = [
            view.objects._replace(boxes=view.objects.boxes + tf.cast(tf.tile(start, [2]), tf.float32))
            for view, start in zip(views, starts, strict=True)
        ]
        objects = Objects(*(tf.concat(values, axis=0) for values in zip(*moved, strict=True)))
        return View(tf.ensure_shape(image, [*self.size, 3]), size, objects, views[0].scale)

    def _pasted(self, *starts_and_parts: np.ndarray) -> np.ndarray:
        image = np.empty((*self.size, 3), np.uint8)
        image[:] = _FILL
        for (top, left), part in zip(starts_and_parts[:4], starts_and_parts[4:], strict=True):
            image[top : top + part.shape[0], left : left + part.shape[1]] = part
        return image
