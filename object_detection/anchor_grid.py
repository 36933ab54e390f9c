"""Anchors: the boxes a dense detector starts from, in NumPy because they are constants of a model."""

import math
from dataclasses import dataclass

import numpy as np

from object_detection.errors import InputError

SQUARE_TWO_TO_ONE = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """Which anchors stand at each cell of the feature maps of levels min_level .. max_level (stride about 2^level).

    aspect_ratios are (width factor, height factor); the side of a square anchor is
    anchor_scale * stride * 2^(octave / num_scales), octave = 0 .. num_scales - 1.
    """

    min_level: int = 3
    max_level: int = 7
    num_scales: int = 3
    aspect_ratios: tuple[tuple[float, float], ...] = SQUARE_TWO_TO_ONE
    anchor_scale: float = 4.0

    def __post_init__(self):
        if not 1 <= self.min_level <= self.max_level:
            raise InputError(f"levels {self.min_level} to {self.max_level}; wanted 1 <= min_level <= max_level")
        if self.num_scales < 1 or not self.aspect_ratios or self.anchor_scale <= 0:
            raise InputError(f"anchors: {self.num_scales} scales, {len(self.aspect_ratios)} aspect ratios and "
                             f"anchor_scale {self.anchor_scale}; wanted at least one of each, above zero")

    @property
    def per_cell(self) -> int:
        """Anchors at each cell."""
        return self.num_scales * len(self.aspect_ratios)

    @property
    def levels(self) -> range:
        """min_level .. max_level."""
        return range(self.min_level, self.max_level + 1)


def feature_sizes(image_size: tuple[int, int], max_level: int) -> list[tuple[int, int]]:
    """(height, width) of the feature map of each level 0 .. max_level; level 0 is the image."""
    sizes = [tuple(image_size)]
    for _ in range(max_level):
        sizes.append(tuple((side - 1) // 2 + 1 for side in sizes[-1]))
    return sizes


def anchor_boxes(config: AnchorConfig, image_size: tuple[int, int]) -> np.ndarray:
    """All anchors of an image. -> [A, 4] float32 yxyx pixels, not clipped.

    Order: level, row, column, octave, aspect. A stride is image side / feature side and need not be whole.
    """
    sizes = feature_sizes(image_size, config.max_level)
    levels = [_level_anchors(config, image_size, sizes[level]) for level in config.levels]
    return np.concatenate(levels).astype(np.float32)


def _level_anchors(config: AnchorConfig, image_size, feature_size) -> np.ndarray:
    stride_y, stride_x = (image / feature for image, feature in zip(image_size, feature_size, strict=True))
    centre_y = stride_y / 2 + stride_y * np.arange(feature_size[0])
    centre_x = stride_x / 2 + stride_x * np.arange(feature_size[1])
    half_sides = np.array([
        (config.anchor_scale * stride_y * octave_scale * height / 2, config.anchor_scale * stride_x * octave_scale * width / 2)
        for octave_scale in (2 ** (octave / config.num_scales) for octave in range(config.num_scales))
        for width, height in config.aspect_ratios
    ])  # [per_cell, 2] (y, x)
    centres = np.stack(np.meshgrid(centre_y, centre_x, indexing="ij"), axis=-1)[:, :, None]  # [h, w, 1, 2]
    return np.concatenate([centres - half_sides, centres + half_sides], axis=-1).reshape(-1, 4)
