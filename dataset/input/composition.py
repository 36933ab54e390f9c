"""Interface of augmentations that compose a training image of several, as copy-paste does."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from dataset.input.crop import Crop
from dataset.input.tiling import PADDING
from object_detection.structures import Objects, Tensor


def fill_row(width: int) -> np.ndarray:
    """Return a row of an image without content, [width, 3] uint8. A row is assigned 60 times as fast as one color."""
    return np.tile(np.array(PADDING, np.uint8), (width, 1))


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
    masks: MaskSource | tuple[()] = ()  # only if the composition needs masks


Load = Callable[[int], View]  # number of the image -> its view


class Composition(Protocol):
    """An augmentation that combines the image at a position of the stream and F further images into one."""

    @property
    def further_images(self) -> int:
        """F."""

    @property
    def needs_masks(self) -> bool:
        """True if the records must have masks."""

    def choose(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Choose the F further records of `count` for an image: [F] int64, all -1 for none."""

    def compose(self, load: Load, seed: Tensor, used: Tensor) -> View:
        """Return the view composed of 1 + `used` images ([] int32), deterministic for a seed, [2] integers."""
