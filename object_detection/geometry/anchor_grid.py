"""Anchors, the reference boxes of a dense detector, by the rules of EfficientDet and torchvision.

In NumPy, because they are constants of a model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from program_support.errors import InputError

SQUARE_TWO_TO_ONE = ((1.0, 1.0), (math.sqrt(2.0), math.sqrt(0.5)), (math.sqrt(0.5), math.sqrt(2.0)))


@dataclass(frozen=True, kw_only=True)
class AnchorConfig:
    """The anchors at each cell of the feature maps of levels min_level .. max_level (stride about 2^level).

    aspect_ratios are (width factor, height factor); the side of a square anchor is
    anchor_scale * stride * 2^(octave / num_scales), octave = 0 .. num_scales - 1.
    """

    min_level: int = 3
    max_level: int = 7
    num_scales: int = 3
    aspect_ratios: tuple[tuple[float, float], ...] = SQUARE_TWO_TO_ONE
    anchor_scale: float = 4.0

    @property
    def per_cell(self) -> int:
        """Number of anchors per cell."""
        return self.num_scales * len(self.aspect_ratios)

    @property
    def levels(self) -> range:
        """Numbers of the feature maps, finest first."""
        return range(self.min_level, self.max_level + 1)


def feature_sizes(image_size: tuple[int, int], max_level: int) -> list[tuple[int, int]]:
    """Return (height, width) of the feature map of each level 0 .. max_level; level 0 is the image."""
    height, width = image_size
    sizes = [(height, width)]
    for _ in range(max_level):
        height, width = (height - 1) // 2 + 1, (width - 1) // 2 + 1
        sizes.append((height, width))
    return sizes


@dataclass(frozen=True, kw_only=True)
class AnchorLevel:
    """The anchors of one feature map: the same shapes around each of its cells.

    Pairs are (y, x), (rows, columns) and (height, width), in pixels or any other unit that all levels share. The center
    of row i is at offset + i stride, but at most at `center_limit`.
    """

    counts: tuple[int, int]  # rows and columns of cells
    strides: tuple[float, float]
    offset: tuple[float, float]  # the first center; half a stride for centered cells, 0 in torchvision
    shapes: tuple[tuple[float, float], ...]  # one per anchor of a cell
    shape_major: bool = False  # all cells of the first shape come before those of the second, as in SSD's reference
    center_limit: tuple[float, float] | None = None

    def __len__(self) -> int:
        """Return the number of anchors of the level."""
        return self.counts[0] * self.counts[1] * len(self.shapes)

    def centers(self) -> list[np.ndarray]:
        """Return the centers of the rows and of the columns, float64."""
        centers = [
            offset + stride * np.arange(count)
            for offset, stride, count in zip(self.offset, self.strides, self.counts, strict=True)
        ]
        limits = self.center_limit or (np.inf, np.inf)
        return [np.minimum(values, limit) for values, limit in zip(centers, limits, strict=True)]

    def runs(self) -> list[list[tuple[int, int]]]:
        """Return the ranges (first, count) of rows and of columns a stride apart: all but those at the limit."""
        limits = self.center_limit or (np.inf, np.inf)
        free = [
            max(int(np.sum(offset + stride * np.arange(count) <= limit)), 1)
            for offset, stride, count, limit in zip(self.offset, self.strides, self.counts, limits, strict=True)
        ]
        return [
            [(0, within), *((place, 1) for place in range(within, count))]
            for within, count in zip(free, self.counts, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class AnchorGrid:
    """The anchors of an image, and the G lattices that they form.

    There is one lattice for each shape on each level, or more if centers of a level are clipped at a limit. Anchor (row
    i, column j) of a lattice is number first + i steps[0] + j steps[1] of `boxes`; its center is centers + (i, j)
    strides. Sides, centers and strides are (y, x) pixels in float32; `boxes` may differ from them by rounding.
    """

    boxes: np.ndarray  # [A, 4] float32 yxyx pixels, not clipped
    level_sizes: tuple[int, ...]  # number of anchors of each level, in the order of `boxes`
    centers: np.ndarray  # [2, G], of row 0 and column 0
    strides: np.ndarray  # [2, G]
    sides: np.ndarray  # [2, G]
    counts: np.ndarray  # [2, G] int32, rows and columns
    first: np.ndarray  # [G] int32
    steps: np.ndarray  # [2, G] int32

    def __len__(self) -> int:
        """Return the number of anchors, A."""
        return len(self.boxes)


def grid_of_levels(levels: Sequence[AnchorLevel]) -> AnchorGrid:
    """Return all anchors of the levels in order: by row, column, shape, or by shape, row, column if `shape_major`."""
    lattices, first = [], 0
    for level in levels:
        lattices += _lattices(level, first=first)
        first += len(level)
    columns = {name: np.array([lattice[name] for lattice in lattices]).T for name in lattices[0]}
    kinds = {name: np.float32 if name in ("centers", "strides", "sides") else np.int32 for name in columns}
    return AnchorGrid(
        boxes=np.concatenate([_level_boxes(level) for level in levels]).astype(np.float32),
        level_sizes=tuple(map(len, levels)),
        **{name: column.astype(kinds[name]) for name, column in columns.items()},
    )


def anchor_grid(config: AnchorConfig, image_size: tuple[int, int]) -> AnchorGrid:
    """Return all anchors of an image by EfficientDet's rule, in the order level, row, column, octave, aspect.

    A stride is image side / feature side and need not be an integer; the anchors of a cell are centered in it.
    """
    sizes = feature_sizes(image_size, config.max_level)
    return grid_of_levels([level_of_cells(config, image_size, sizes[level]) for level in config.levels])


def level_of_cells(config: AnchorConfig, image_size: tuple[int, int], counts: tuple[int, int]) -> AnchorLevel:
    """Return the anchors of a feature map of `counts` (rows, columns), centered in each cell."""
    strides = np.array(image_size) / np.array(counts)
    shapes = [
        config.anchor_scale * strides * octave_scale * (height, width)
        for octave_scale in (2 ** (octave / config.num_scales) for octave in range(config.num_scales))
        for width, height in config.aspect_ratios
    ]
    return AnchorLevel(
        counts=counts, strides=tuple(strides), offset=tuple(strides / 2), shapes=tuple(map(tuple, shapes))
    )


def _level_boxes(level: AnchorLevel) -> np.ndarray:
    """Return the anchors of a level, [anchors, 4] float64 yxyx."""
    centers = np.stack(np.meshgrid(*level.centers(), indexing="ij"), axis=-1)[:, :, None]  # [h, w, 1, 2]
    half_sides = np.array(level.shapes) / 2
    boxes = np.concatenate([centers - half_sides, centers + half_sides], axis=-1)
    return (boxes.transpose(2, 0, 1, 3) if level.shape_major else boxes).reshape(-1, 4)


def _lattices(level: AnchorLevel, *, first: int) -> list[dict[str, Any]]:
    """Return the lattices of a level whose anchors begin at number `first`, each as fields of an AnchorGrid."""
    (rows, columns), shapes, (row_centers, column_centers) = level.counts, len(level.shapes), level.centers()
    step, next_shape = (1, rows * columns) if level.shape_major else (shapes, 1)
    row_runs, column_runs = level.runs()
    return [
        {
            "centers": (row_centers[row], column_centers[column]),
            "strides": level.strides,
            "sides": sides,
            "counts": (row_count, column_count),
            "first": first + (row * columns + column) * step + number * next_shape,
            "steps": (columns * step, step),
        }
        for number, sides in enumerate(level.shapes)
        for row, row_count in row_runs
        for column, column_count in column_runs
    ]


RETINANET_SCALES = 3  # anchor sizes per level
HEIGHT_TO_WIDTH = (0.5, 1.0, 2.0)


def retinanet_sizes(anchor_scale: float = 4.0) -> tuple[tuple[int, ...], ...]:
    """Return the sides in pixels of the square anchors up to P7: `anchor_scale` cells times 2^(0, 1/3, 2/3)."""
    return tuple(
        tuple(int(2**level * anchor_scale * 2 ** (octave / RETINANET_SCALES)) for octave in range(RETINANET_SCALES))
        for level in range(3, 8)
    )


RETINANET_SIZES = retinanet_sizes()


def rounded_levels(
    image_size: tuple[int, int],
    feature_sizes: Sequence[tuple[int, int]],
    *,
    sizes: Sequence[Sequence[float]],
    height_to_width: Sequence[float] = HEIGHT_TO_WIDTH,
) -> list[AnchorLevel]:
    """Return anchors by torchvision's rule (models/detection/anchor_utils.py), with sides in integer pixels.

    Each cell has one anchor of size^2 square pixels for each aspect ratio and each size, ratio first. Half sides are
    rounded to integers, ties to even. Cell (i, j) is centered at (i, j) strides, without half a cell, and a stride is
    image side // feature side, so the last cells may lie far from the border. With RETINANET_SIZES there are 120,087
    anchors at 800 x 800.

    Args:
        image_size: (rows, columns).
        feature_sizes: (rows, columns) of each level.
        sizes: sides of the square anchors of each level.
        height_to_width: aspect ratios.

    Raises:
        ValueError: the numbers of sizes and levels differ.
        InputError: an anchor is less than a pixel wide or high.
    """
    ratios = np.sqrt(np.array(height_to_width, np.float32))  # float32 as in torchvision, so that ties are rounded alike
    levels = []
    for counts, level_sizes in zip(feature_sizes, sizes, strict=True):
        squares = np.array(level_sizes, np.float32)
        sides = np.stack([np.outer(ratios, squares), np.outer(1 / ratios, squares)], axis=-1)
        shapes = 2.0 * np.round(sides.reshape(-1, 2) / 2)
        if not shapes.all():
            raise InputError(
                f"an anchor of {level_sizes[0]:g} pixels per side has no height or no width at aspect ratios "
                f"(height / width) of {', '.join(f'{ratio:g}' for ratio in height_to_width)}; expected larger "
                "anchors or ratios closer to 1"
            )
        levels.append(
            AnchorLevel(
                counts=counts,
                strides=(image_size[0] // counts[0], image_size[1] // counts[1]),
                offset=(0.0, 0.0),
                shapes=tuple((height, width) for height, width in shapes.tolist()),
            )
        )
    return levels
