"""Which anchors published detectors stand on, as levels for `grid_of_levels`: RetinaNet, region proposals, SSD300."""

import math
from collections.abc import Sequence

import numpy as np

from object_detection.anchor_grid import AnchorLevel

HEIGHT_TO_WIDTH = (0.5, 1.0, 2.0)
RETINANET_SIZES = tuple(tuple(int(2**level * 4 * 2 ** (octave / 3)) for octave in range(3)) for level in range(3, 8))
PROPOSAL_SIZES = tuple((2**level * 8,) for level in range(2, 7))  # of Mask R-CNN's P2 .. P6
SSD300_COUNTS = (38, 19, 10, 5, 3, 1)
SSD300_STRIDES = (8, 16, 32, 64, 100, 300)  # pixels
SSD300_SIZES = (21, 45, 99, 153, 207, 261, 315)  # pixels; that of each map, and of a map after the last
SSD300_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
_SSD300_SIDE = 300.0


def rounded_levels(
    image_size: tuple[int, int], feature_sizes: Sequence[tuple[int, int]], *, sizes: Sequence[Sequence[float]],
    height_to_width: Sequence[float] = HEIGHT_TO_WIDTH,
) -> list[AnchorLevel]:
    """Anchors by torchvision's rule (models/detection/anchor_utils.py), in whole pixels.

    image_size and feature_sizes (of each level) are (rows, columns), sizes[level] the sides of its squares. At each cell one
    anchor of size^2 square pixels for each ratio of height to width and each size, ratio first; half sides are rounded to
    whole pixels, halves to the even one. Cell (i, j) stands at (i, j) strides, without half a cell, and a stride is image
    side // feature side: the last cells may lie far from the border. With RETINANET_SIZES 120,087 anchors at 800 x 800.
    Raises ValueError for other numbers of sizes than levels.
    """
    ratios = np.sqrt(np.float32(height_to_width))  # float32, as what rounds to a half there must do so here
    levels = []
    for counts, level_sizes in zip(feature_sizes, sizes, strict=True):
        sides = np.stack([np.outer(ratios, np.float32(level_sizes)), np.outer(1 / ratios, np.float32(level_sizes))], axis=-1)
        shapes = 2.0 * np.round(sides.reshape(-1, 2) / 2)
        levels.append(AnchorLevel(
            counts=tuple(counts), strides=tuple(side // count for side, count in zip(image_size, counts, strict=True)),
            offset=(0.0, 0.0), shapes=tuple(map(tuple, shapes.tolist()))))
    return levels


def ssd300_levels() -> list[AnchorLevel]:
    """The 8,732 default boxes of SSD300 (Liu et al. 2016, with MLPerf's sizes) in pixels of 300 x 300.

    Shapes of a map: a square of its size, one of the geometric mean of its and the next map's, then for each ratio the wide
    and the tall one. Order as in MLPerf's reference: map, shape, row, column. As there centres and sides end at the image's
    300 pixels, corners do not.
    """
    levels = []
    for number, (count, stride, ratios) in enumerate(zip(SSD300_COUNTS, SSD300_STRIDES, SSD300_RATIOS, strict=True)):
        size, larger = SSD300_SIZES[number], math.sqrt(SSD300_SIZES[number] * SSD300_SIZES[number + 1])
        shapes = [(size, size), (larger, larger)]
        for ratio in map(math.sqrt, ratios):
            shapes += [(size / ratio, size * ratio), (size * ratio, size / ratio)]
        levels.append(AnchorLevel(
            counts=(count, count), strides=(stride, stride), offset=(stride / 2, stride / 2), shape_major=True,
            shapes=tuple((min(height, _SSD300_SIDE), min(width, _SSD300_SIDE)) for height, width in shapes),
            centre_limit=(_SSD300_SIDE, _SSD300_SIDE)))
    return levels
