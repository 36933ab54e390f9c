"""Mosaic: parts of four training images side by side."""

from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from dataset.input.composition import Load, RandomComposition, View, fill_row
from object_detection.structures import Objects, Tensor

_LEAST_SHARE = (
    0.25  # minimum distance of the point where the four images meet from the border, as a fraction of the side
)


@dataclass(frozen=True)
class Mosaic(RandomComposition):
    """Parts of four images around a random point (Bochkovskiy et al. 2020, YOLOv4, section 3.4).

    Each image is augmented as usual, so that object sizes are the same as without mosaic; a random part of it, at most
    as large as its quadrant, fills the quadrant from its upper left corner.
    """

    size: tuple[int, int]  # H, W of the network input
    further_images = 3
    needs_masks = False

    def compose(self, load: Load, seed: Tensor, used: Tensor) -> View:
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
        image[:] = fill_row(self.size[1])
        for (top, left), part in zip(starts_and_parts[:4], starts_and_parts[4:], strict=True):
            image[top : top + part.shape[0], left : left + part.shape[1]] = part
        return image
