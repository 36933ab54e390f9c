"""SSD300's default boxes as levels for `grid_of_levels`."""

import math

from object_detection.geometry.anchor_grid import AnchorLevel, feature_sizes
from program_support.errors import InputError

SSD300_STRIDES = (8, 16, 32, 64)  # pixels; a further map has the image's side divided by its number of cells
SSD300_SIZES = (21, 45, 99, 153, 207, 261, 315)  # pixels at 300 x 300; one size per map and one further
SSD300_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
SSD300_BOXES_PER_CELL = tuple(2 + 2 * len(ratios) for ratios in SSD300_RATIOS)  # one per feature map
_SSD300_SIDE = 300
_SSD300_SMALLEST = 257  # pixels per side; the last map has one cell


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
