"""Interface of augmentations that compose a training image of several: mosaic and copy-paste."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from dataset.input.crop import Crop
from object_detection.structures import Objects, Tensor
from program_support.errors import InputError

FILL = (124, 116, 104)  # ImageNet's mean color, zero after normalization as padding is


def fill_row(width: int) -> np.ndarray:
    """Return a row of an image without content, [width, 3] uint8. A row is assigned 60 times as fast as one color."""
    return np.tile(np.array(FILL, np.uint8), (width, 1))


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


# (number of the image, within: [2] int32 or None) -> its view, cropped to at most `within` pixels
Load = Callable[..., View]


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


@dataclass(frozen=True)
class RandomComposition:
    """A composition that is applied with a probability, of F further images chosen independently."""

    probability: float
    further_images: ClassVar[int]

    def __post_init__(self):
        if not 0 < self.probability <= 1:
            raise InputError(
                f"probability of a {type(self).__name__} is {self.probability}; expected above 0, at most 1"
            )

    def choose(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Choose F records with the probability, else none."""
        chosen = random.integers(count, size=self.further_images)
        return chosen if random.random() < self.probability else np.full_like(chosen, -1)


@dataclass(frozen=True)
class OneOf:
    """The first composition with its probability; for the other images the second one with its probability.

    The second one uses fewer further images.
    """

    first: Composition
    second: Composition

    @property
    def further_images(self) -> int:
        """F of the first."""
        return self.first.further_images

    @property
    def needs_masks(self) -> bool:
        """True if either composition needs masks."""
        return self.first.needs_masks or self.second.needs_masks

    def choose(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Choose for the first composition, or else for the second one, with -1 at the end."""
        chosen = self.first.choose(random, count)
        if chosen[0] < 0:
            chosen[: self.second.further_images] = self.second.choose(random, count)
        return chosen

    def compose(self, load: Load, seed: Tensor, used: Tensor) -> View:
        """Compose by the composition that chose."""
        compositions: tuple[Any, Any] = self.first, self.second
        first, second = (lambda each=each: each.compose(load, seed, used) for each in compositions)
        return tf.cond(used == self.first.further_images, first, second)
