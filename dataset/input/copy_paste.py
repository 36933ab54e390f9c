"""Copy-paste: objects of one training image over another one, by their masks (Ghiasi et al. 2021)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow as tf

from dataset.input.crop import MINIMUM_BOX_SIDE, Crop, decoded_mask, mask_at
from dataset.input.tiling import PADDING
from object_detection.coco.run_length_masks import mask_bounds
from object_detection.structures import Objects, Tensor
from program_support.errors import InputError

_PASTED_SHARE = 0.5  # probability that an object is pasted
_LEAST_VISIBLE = 0.05  # share of its pixels from which a partly hidden object is kept


class MaskSource(NamedTuple):
    """The masks of the n objects of a view as they are in the record, for `crop.mask_at`."""

    pngs: Tensor  # [n] string, masks of the size of the original image
    crop: Crop
    size: Tensor  # [2] int32, of the original image
    file_name: Tensor  # the record's, named in errors


class View(NamedTuple):
    """An augmented image with its n objects."""

    image: Tensor  # [H, W, 3] uint8
    size: Tensor  # [2] int32, height and width of the valid area
    objects: Objects  # no batch dimension: boxes [n, 4] in input pixels, ...
    scale: Tensor  # [2] float32, original pixels per input pixel
    masks: MaskSource | tuple[()] = ()  # only for copy-paste


Load = Callable[[int], View]  # number of the image -> its view


@dataclass(frozen=True)
class CopyPaste:
    """A random half of the objects of a further image, pasted over an image ("Simple Copy-Paste", section 3).

    Both images are augmented as usual; an object is pasted, without blending, where it is in its own one. Crowds are
    not pasted. Boxes and masks of the objects below shrink to what remains visible. The paper also fills the area
    beyond the smaller image with the mean color.
    """

    probability: float

    def __post_init__(self):
        if not 0 < self.probability <= 1:
            raise InputError(f"probability of copy-paste is {self.probability}; expected above 0, at most 1")

    def choose(self, random: np.random.Generator, count: int) -> int:
        """Choose a further record of `count` with the probability, else -1."""
        chosen = int(random.integers(count, size=1)[0])
        return chosen if random.random() < self.probability else -1

    def compose(self, load: Load, seed: Tensor) -> View:
        """Paste objects of view 1 over view 0, deterministically for a seed, [2] integers."""
        below, above = load(0), load(1)
        draws = tf.random.stateless_uniform(tf.shape(above.objects.crowd), seed=seed)
        numbers = tf.where((draws < _PASTED_SHARE) & ~above.objects.crowd)[:, 0]
        pasted = Objects(*(tf.gather(values, numbers) for values in above.objects))
        assert isinstance(above.masks, MaskSource)
        sources = below.masks, above.masks._replace(pngs=tf.gather(above.masks.pngs, numbers))
        image, boxes, masks, visible, shows = tf.numpy_function(
            _pasted,
            [
                *(below.image, below.size, below.objects.boxes, below.objects.masks),
                *(above.image, above.size, pasted.boxes),
                *tf.nest.flatten(sources),
            ],
            (tf.uint8, tf.float32, tf.uint8, tf.bool, tf.bool),
            stateful=False,
        )
        remaining = below.objects._replace(
            boxes=tf.ensure_shape(boxes, [None, 4]), masks=tf.ensure_shape(masks, below.objects.masks.shape)
        )
        visible, shows = tf.ensure_shape(visible, [None]), tf.ensure_shape(shows, [None])
        objects = Objects(
            *(
                tf.concat([tf.boolean_mask(one, visible), tf.boolean_mask(other, shows)], axis=0)
                for one, other in zip(remaining, pasted, strict=True)
            )
        )
        size = tf.maximum(below.size, above.size)
        return View(tf.ensure_shape(image, below.image.shape), size, objects, below.scale)


def _pasted(
    image: np.ndarray,
    size: np.ndarray,
    boxes: np.ndarray,
    masks: np.ndarray,
    above: np.ndarray,
    above_size: np.ndarray,
    above_boxes: np.ndarray,
    *sources: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Return the image, its objects' boxes and masks, which of them are visible, and which pasted objects are."""
    below_source, above_source = _mask_source(sources[:7]), _mask_source(sources[7:])
    composed, covered = np.zeros_like(image), np.zeros(image.shape[:2], bool)
    height, width = np.maximum(size, above_size)
    # a row is assigned 60 times as fast as one color
    composed[:height, :width] = np.tile(np.array(PADDING, np.uint8), (width, 1))
    composed[: size[0], : size[1]] = image[: size[0], : size[1]]
    shows = np.zeros(len(above_boxes), bool)
    for number, box in enumerate(above_boxes):
        window, shape, _ = _shape_of(number, box, above_source)
        cv2.copyTo(above[window], shape.view(np.uint8), dst=composed[window])
        covered[window] |= shape
        shows[number] = shape.any()
    boxes, masks, visible = boxes.copy(), masks.copy(), np.ones(len(boxes), bool)
    for number, box in enumerate(boxes):
        if covered[_window(box)].any():
            visible[number] = _hide(number, box, masks[number], below_source, covered)
    return composed, boxes, masks, visible, shows


def _hide(number: int, box: np.ndarray, cells: np.ndarray, source: MaskSource, covered: np.ndarray) -> bool:
    """Reduce the box [4] and the mask in it [side, side] of an object, in place; return whether to keep the object."""
    window, shape, mask = _shape_of(number, box, source)
    if not shape.any():
        shape[:] = True  # smaller than a pixel
    seen = shape & ~covered[window]
    if seen.sum() < _LEAST_VISIBLE * shape.sum():
        return False
    if seen.sum() == shape.sum():
        return True
    # Each side moves by the pixels that are hidden at it: one without hidden pixels stays exactly where it is.
    box += np.subtract(mask_bounds(seen), mask_bounds(shape))
    if (box[2:] - box[:2]).min() < MINIMUM_BOX_SIDE:
        return False
    if cells.size:
        shares = (np.arange(len(cells)) + 0.5) / len(cells)
        y, x = box[:2, None].astype(np.float64) + shares * (box[2:] - box[:2])[:, None]
        cells[:] = mask_at(mask, y, x, source.crop) & ~covered[y.astype(int)[:, None], x.astype(int)]
    return True


def _shape_of(number: int, box: np.ndarray, source: Any) -> tuple[tuple[slice, slice], np.ndarray, np.ndarray]:
    """Return the window of a box, which of its input pixels belong to the object, and the mask of the original."""
    mask, window = decoded_mask(source.pngs[number], source.size, source.file_name), _window(box)
    y, x = (np.arange(side.start, side.stop) + 0.5 for side in window)
    return window, mask_at(mask, y, x, source.crop), mask


def _window(box: np.ndarray) -> tuple[slice, slice]:
    """Return the rows and columns that a box [4] touches."""
    (top, left), (bottom, right) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
    return slice(top, bottom), slice(left, right)


def _mask_source(values: tuple[np.ndarray, ...]) -> MaskSource:
    pngs, *crop, size, file_name = values
    return MaskSource(pngs, Crop(*crop), size, file_name)
