"""Anchors of published detectors as levels for `grid_of_levels`: RetinaNet, region proposals, SSD300."""

import math
from collections.abc import Sequence

import numpy as np

from object_detection.geometry.anchor_grid import AnchorConfig, AnchorLevel, feature_sizes, level_of_cells
from program_support.errors import InputError

RETINANET_SCALES = 3  # anchor sizes per level
HEIGHT_TO_WIDTH = (0.5, 1.0, 2.0)
NVIDIA_ASPECT_RATIOS = ((1.0, 1.0), (1.4, 0.7), (0.7, 1.4))  # width and height of the anchors of NVIDIA's Mask R-CNN
SSD300_STRIDES = (8, 16, 32, 64)  # pixels; a further map has the image's side divided by its number of cells
SSD300_SIZES = (21, 45, 99, 153, 207, 261, 315)  # pixels at 300 x 300; one size per map and one further
SSD300_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
SSD300_BOXES_PER_CELL = tuple(2 + 2 * len(ratios) for ratios in SSD300_RATIOS)  # one per feature map
_SSD300_SIDE = 300
_SSD300_SMALLEST = 257  # pixels per side; the last map has one cell


def retinanet_sizes(anchor_scale: float = 4.0, *, min_level: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return the sides in pixels of the square anchors up to P7: `anchor_scale` cells times 2^(0, 1/3, 2/3)."""
    return tuple(
        tuple(int(2**level * anchor_scale * 2 ** (octave / RETINANET_SCALES)) for octave in range(RETINANET_SCALES))
        for level in range(min_level, 8)
    )


def proposal_sizes(anchor_scale: float = 8.0) -> tuple[tuple[float, ...], ...]:
    """Return the sides in pixels of the square anchors of Mask R-CNN's P2 to P6, `anchor_scale` cells each."""
    return tuple((2**level * anchor_scale,) for level in range(2, 7))


RETINANET_SIZES, PROPOSAL_SIZES = retinanet_sizes(), proposal_sizes()


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


def centered_levels(
    image_size: tuple[int, int], feature_sizes: Sequence[tuple[int, int]], *, scale: float = 8.0
) -> list[AnchorLevel]:
    """Return the anchors of proposals of NVIDIA's TensorFlow 2 Mask R-CNN (mrcnn_tf2/model/anchors.py).

    The rule is EfficientDet's, with one scale and different aspect ratios: 279,279 anchors at 832 x 1344 on levels 2 to
    6.
    """
    config = AnchorConfig(num_scales=1, aspect_ratios=NVIDIA_ASPECT_RATIOS, anchor_scale=scale)
    return [level_of_cells(config, image_size, counts) for counts in feature_sizes]


def ssd300_counts(image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return rows and columns of SSD300's maps: halved up to stride 64, then twice reduced by two.

    38, 19, 10, 5, 3, 1 at 300 pixels.

    Raises:
        InputError: the last map would have no cell.
    """
    counts = feature_sizes(image_size, 6)[3:]
    for _ in range(2):
        counts.append((counts[-1][0] - 2, counts[-1][1] - 2))
    if min(counts[-1]) < 1:
        raise InputError(
            f"image_size is {image_size[0]} x {image_size[1]}; expected at least {_SSD300_SMALLEST} pixels per "
            "side, because SSD300's last map has no cell otherwise"
        )
    return counts


def ssd300_levels(image_size: tuple[int, int] = (_SSD300_SIDE, _SSD300_SIDE)) -> list[AnchorLevel]:
    """Return the 8,732 default boxes of SSD300 (Liu et al. 2016, with MLPerf's sizes) in pixels.

    For another image size the number follows from its maps, and the boxes scale with the image. Shapes of a map: a
    square of its size, one of the geometric mean of its and the next map's size, then for each ratio the wide and the
    tall one. Order as in MLPerf's reference: map, shape, row, column. As there, centers and sides are clipped to the
    image, corners are not.

    Raises:
        InputError: as `ssd300_counts`.
    """
    levels, (height, width) = [], image_size
    row_scale, column_scale = height / _SSD300_SIDE, width / _SSD300_SIDE
    for number, (counts, ratios) in enumerate(zip(ssd300_counts(image_size), SSD300_RATIOS, strict=True)):
        size, larger = SSD300_SIZES[number], math.sqrt(SSD300_SIZES[number] * SSD300_SIZES[number + 1])
        shapes: list[tuple[float, float]] = [(size, size), (larger, larger)]
        for ratio in map(math.sqrt, ratios):
            shapes += [(size / ratio, size * ratio), (size * ratio, size / ratio)]
        strides = (height / counts[0], width / counts[1])
        if number < len(SSD300_STRIDES):
            strides = (SSD300_STRIDES[number], SSD300_STRIDES[number])
        levels.append(
            AnchorLevel(
                counts=counts,
                strides=strides,
                offset=(strides[0] / 2, strides[1] / 2),
                shape_major=True,
                shapes=tuple((min(y * row_scale, height), min(x * column_scale, width)) for y, x in shapes),
                center_limit=image_size,
            )
        )
    return levels
