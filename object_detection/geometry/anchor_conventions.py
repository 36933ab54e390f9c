"""Anchors by torchvision's rule as levels for `grid_of_levels`."""

from collections.abc import Sequence

import numpy as np

from object_detection.geometry.anchor_grid import AnchorLevel
from program_support.errors import InputError

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
