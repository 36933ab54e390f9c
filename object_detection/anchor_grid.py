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


@dataclass(frozen=True, kw_only=True, eq=False)
class AnchorGrid:
    """The anchors of an image, and the G lattices that they form: one of each shape on each level.

    Anchor (row i, column j) of a lattice is number first + i steps[0] + j steps[1] of `boxes`; its centre stands at
    centres + (i, j) strides. Sides, centres and strides are (y, x) pixels in float32; `boxes` may differ from them by rounding.
    """

    boxes: np.ndarray  # [A, 4] float32 yxyx pixels, not clipped
    centres: np.ndarray  # [2, G], of row 0 and column 0
    strides: np.ndarray  # [2, G]
    sides: np.ndarray  # [2, G]
    counts: np.ndarray  # [2, G] int32, rows and columns
    first: np.ndarray  # [G] int32
    steps: np.ndarray  # [2, G] int32

    def __len__(self) -> int:
        """Anchors."""
        return len(self.boxes)


def anchor_grid(config: AnchorConfig, image_size: tuple[int, int]) -> AnchorGrid:
    """All anchors of an image. Order: level, row, column, octave, aspect. A stride is image side / feature side and need not
    be whole."""
    sizes, first = feature_sizes(image_size, config.max_level), 0
    boxes, lattices = [], []
    for level in config.levels:
        counts = np.array(sizes[level])
        strides = np.array(image_size) / counts
        half_sides = _half_sides(config, strides)
        boxes.append(_level_boxes(strides, counts, half_sides))
        for shape, half_side in enumerate(half_sides):
            lattices.append({"centres": strides / 2, "strides": strides, "sides": 2 * half_side, "counts": counts,
                             "first": first + shape, "steps": (counts[1] * config.per_cell, config.per_cell)})
        first += len(boxes[-1])
    columns = {name: np.array([lattice[name] for lattice in lattices]).T for name in lattices[0]}
    kinds = {name: np.float32 if name in ("centres", "strides", "sides") else np.int32 for name in columns}
    return AnchorGrid(boxes=np.concatenate(boxes).astype(np.float32),
                      **{name: column.astype(kinds[name]) for name, column in columns.items()})


def anchor_boxes(config: AnchorConfig, image_size: tuple[int, int]) -> np.ndarray:
    """The boxes of `anchor_grid`. -> [A, 4] float32 yxyx pixels, not clipped."""
    return anchor_grid(config, image_size).boxes


def _half_sides(config: AnchorConfig, strides: np.ndarray) -> np.ndarray:
    """Of each shape at a cell: [per_cell, 2] (y, x)."""
    return np.array([
        config.anchor_scale * strides * octave_scale * (height, width) / 2
        for octave_scale in (2 ** (octave / config.num_scales) for octave in range(config.num_scales))
        for width, height in config.aspect_ratios
    ])


def _level_boxes(strides: np.ndarray, counts: np.ndarray, half_sides: np.ndarray) -> np.ndarray:
    centres = [stride / 2 + stride * np.arange(count) for stride, count in zip(strides, counts, strict=True)]
    centres = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1)[:, :, None]  # [h, w, 1, 2]
    return np.concatenate([centres - half_sides, centres + half_sides], axis=-1).reshape(-1, 4)
