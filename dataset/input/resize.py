"""Resize rules: how an image of any size becomes the network input. A detector's input is one object of these.

Each rule is called with an image and returns the three tensors that networks and boxes need; `size` is known before, so that
programs are compiled once. By default they resample as the published checkpoints of EfficientDet were trained
(google/automl): bilinear at half-pixel centers, without antialiasing. The pixels are TensorFlow's, as a rule is part of
exported models. h, w are the pixels of the original image, H, W those of the network input.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from dataset.input.crop import Crop
from dataset.input.host_resize import HostResize
from object_detection.structures import Tensor
from program_support.errors import InputError


class ResizeRule(Protocol):
    """What the input and its users ask of a rule."""

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""

    def scaled_size(self, source_size: Tensor) -> Tensor:
        """Height and width of the part of the input that is image, from those of the original: [2] int32 each."""

    def whole(self, source_size: Tensor) -> Crop:
        """The crop that takes the whole image to its place."""

    def resample(self, image: Tensor, scaled: Tensor) -> Tensor:
        """[h, w, 3] uint8 -> [H, W, 3] uint8: resized to `scaled` [2] int32 at the top left, 0 elsewhere."""

    def __call__(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[h, w, 3] uint8 -> image, part that is image and scales; see `_Rule`."""


@dataclass(frozen=True, kw_only=True)
class _Resampling:
    """Bilinear resampling; both fields are how a network's training did it."""

    antialias: bool = False  # average over what an output pixel covers when an image shrinks, as PIL does
    half_pixel_centers: bool = True  # False: pixel 0 stays in place, as TensorFlow 1 did


class _Rule(_Resampling):
    """What rules have in common; each says its `size` and `scaled_size`."""

    def whole(self, source_size: Tensor) -> Crop:
        """The crop that takes the whole image to its place."""
        return Crop(offset=tf.zeros_like(source_size), window=source_size, size=self.scaled_size(source_size),
                    flip=tf.constant(False))

    def resample(self, image: Tensor, scaled: Tensor) -> Tensor:
        """[h, w, 3] uint8 -> [H, W, 3] uint8: resized to `scaled` [2] int32 at the top left, 0 elsewhere."""
        if self.half_pixel_centers:
            resized = tf.image.resize(image, scaled, method="bilinear", antialias=self.antialias)
        else:
            resized = tf.raw_ops.ResizeBilinear(images=image[None], size=scaled)[0]
        # Rounds like tf.round, which takes twice as long.
        return _padded(tf.cast(resized + 0.5, tf.uint8), self.size)

    def __call__(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[h, w, 3] uint8 -> [H, W, 3] uint8; [2] int32 height and width of the part that is image; [2] float32

        original pixels per input pixel, y and x. They differ: sides are whole pixels, one of them off by up to a pixel.
        The reference scales boxes by one number, which displaces them by that much (AP 0.92 for 0.99 at 128 pixels).
        """
        source_size = tf.shape(image)[:2]
        scaled = self.scaled_size(source_size)
        return self.resample(image, scaled), scaled, tf.cast(source_size, tf.float32) / tf.cast(scaled, tf.float32)


@dataclass(frozen=True)
class Letterbox(_Rule):
    """The whole image, as large as fits into `size` (H, W) with its aspect kept: EfficientDet's rule."""

    size: tuple[int, int]

    def scaled_size(self, source_size: Tensor) -> Tensor:
        """Height and width of the part that is image, [2] int32, rounded down."""
        scale = fitting_scale(source_size, tf.cast(tf.constant(self.size), tf.float32))
        return tf.minimum(scaled_by(source_size, scale), tf.constant(self.size))


@dataclass(frozen=True)
class Stretch(_Rule):
    """Every image to exactly `size` (H, W), whatever its aspect: SSD's rule."""

    size: tuple[int, int]

    def scaled_size(self, source_size: Tensor) -> Tensor:
        """All of the input, [2] int32."""
        return tf.constant(self.size) + tf.zeros_like(source_size)


@dataclass(frozen=True)
class FitWithin(_Rule):
    """The shorter side to `shorter`, unless the longer would exceed `longer`: the rule of RetinaNet and Mask R-CNN.

    The aspect is kept. The input is a square whose side is `longer`, rounded up to a `multiple` of the network's largest
    stride: wide and tall images have one shape, so a program is compiled once. Sides are rounded down, in float32 where
    torchvision has float64: one of the two may be a pixel shorter (docs/reference/detectors.md).
    """

    shorter: int = 800
    longer: int = 1333
    multiple: int = 32

    def __post_init__(self):
        if not 1 <= self.shorter <= self.longer or self.multiple < 1:
            raise InputError(f"shorter side {self.shorter}, longer side {self.longer}, multiple of {self.multiple}; expected "
                             "1 <= shorter <= longer and a multiple of at least 1")

    @property
    def size(self) -> tuple[int, int]:
        """H, W of the network input."""
        side = math.ceil(self.longer / self.multiple) * self.multiple
        return side, side

    def scaled_size(self, source_size: Tensor) -> Tensor:
        """Height and width of the part that is image, [2] int32, rounded down."""
        sides = tf.cast(source_size, tf.float32)
        scale = tf.minimum(self.shorter / tf.reduce_min(sides), self.longer / tf.reduce_max(sides))
        return tf.minimum(scaled_by(source_size, scale), self.longer)


def host_resize(rule: ResizeRule) -> HostResize:
    """The same rule in NumPy. Raises InputError for one that is none of the above."""
    resampling = {"antialias": rule.antialias, "half_pixel_centers": rule.half_pixel_centers, "size": rule.size}
    if isinstance(rule, FitWithin):
        return HostResize(kind="fit", shorter=rule.shorter, longer=rule.longer, **resampling)
    kinds = {Letterbox: "letterbox", Stretch: "stretch"}
    if type(rule) not in kinds:
        raise InputError(f"resize rule {type(rule).__name__} has no NumPy implementation; expected Letterbox, Stretch or "
                         "FitWithin")
    return HostResize(kind=kinds[type(rule)], **resampling)


def fitting_scale(source_size: Tensor, target: Tensor) -> Tensor:
    """Input pixels per original pixel at which the image just fits the target: [2] int32, [2] float32 -> []."""
    return tf.reduce_min(target / tf.cast(source_size, tf.float32))


def scaled_by(source_size: Tensor, scale: Tensor) -> Tensor:
    """[2] int32, at least 1. Float32 and rounded down, even where 479.99997 was meant as 480: as the reference."""
    return tf.maximum(tf.cast(tf.cast(source_size, tf.float32) * scale, tf.int32), 1)


def _padded(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Zeros at the bottom and at the right: -> [H, W, 3]."""
    height, width = tf.unstack(tf.shape(image)[:2])
    rows = tf.reshape(image, [height, width * 3])  # padding two dimensions takes a third of the time of padding three
    padded = tf.pad(rows, [[0, size[0] - height], [0, (size[1] - width) * 3]])
    return tf.reshape(padded, [*size, 3])
