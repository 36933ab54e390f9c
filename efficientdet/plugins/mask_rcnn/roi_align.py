"""RoIAlign: features of regions, each from the pyramid level that suits its size (He et al. 2017, section 3).

A bin is the mean of 2 x 2 samples, and a sample is interpolated between four cells. Both are separable: a bin is a
weighted sum of 4 rows x 4 columns of cells. So the levels are concatenated to one list of cells, and features of
regions are weighted sums of 16 cells; of 4 cells with one sample per bin.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from keras import ops
from numpy.typing import ArrayLike

from object_detection.structures import Tensor

CANONICAL_SIDE, CANONICAL_LEVEL = 224.0, 4  # Lin et al. 2017, eq. 1


# torchvision's
SAMPLES = 2  # per bin and axis
LEVEL_SLACK = 1e-6  # added before a level is rounded down


def features_of_regions(
    levels: Sequence[Tensor],
    boxes: Tensor,
    images: Tensor,
    *,
    size: int,
    image_size: tuple[int, int],
    weighted_sums: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Return the features of each box, [R, size, size, C].

    As torchvision's MultiScaleRoIAlign: coordinates are not shifted by half a cell, sides are at least one cell,
    samples more than a cell outside are 0. Differentiable in the levels, not in the boxes.

    Args:
        levels: [B, h, w, C] each, finest first.
        boxes: [R, 4], yxyx pixels.
        images: [R] int32, the image of each box in the batch.
        size: bins per side.
        image_size: height and width of the network input; the stride of a level is a power of two.
        weighted_sums: `gathered_sums`, or an equivalent.
    """
    shapes = [tuple(level.shape[1:3]) for level in levels]
    cells = ops.concatenate(
        [
            ops.reshape(level, (-1, height * width, level.shape[-1]))
            for level, (height, width) in zip(levels, shapes, strict=True)
        ],
        axis=1,
    )
    per_image, channels = cells.shape[1:]
    numbers, weights = _taps(ops.stop_gradient(boxes), shapes, size=size, image_size=image_size)
    taps = (2 * SAMPLES) ** 2  # each sample lies between two cells
    numbers = ops.reshape(numbers + per_image * ops.reshape(images, (-1, 1, 1, 1, 1)), (-1, taps))
    pooled = (weighted_sums or gathered_sums)(
        ops.reshape(cells, (-1, channels)), numbers, ops.reshape(weights, (-1, taps))
    )
    return ops.reshape(pooled, (-1, size, size, channels))


def gathered_sums(rows: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
    """Return weighted sums [R, C] of rows [K, C], given T numbers (int32) and weights (float32) each, [R, T].

    The result has the precision of the rows. Sums and gradient are computed in float32; differentiable in the rows.
    """
    exact, weights = ops.cast(rows, "float32"), ops.stop_gradient(weights)
    # In parts, because without XLA each product is materialized
    parts = [slice(first, first + 4) for first in range(0, numbers.shape[1], 4)]
    sums = [ops.sum(ops.take(exact, numbers[:, part], axis=0) * weights[:, part, None], axis=1) for part in parts]
    return ops.cast(sum(sums[1:], sums[0]), rows.dtype)


def region_levels(boxes: Tensor, *, finest: int, count: int) -> Tensor:
    """Return the level of each box, 0 .. count - 1, the first at stride 2^finest. [..., 4] -> [...] int32."""
    sides = ops.sqrt((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
    level = ops.floor(CANONICAL_LEVEL + ops.log2(sides / CANONICAL_SIDE) + LEVEL_SLACK)
    return ops.cast(ops.clip(level, finest, finest + count - 1), "int32") - finest


def level_strides(shapes: Sequence[tuple[int, int]], image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the strides of each level in pixels (y, x), powers of two, from the sizes of its map and of the image."""
    return [
        tuple(2 ** round(math.log2(pixels / cells)) for cells, pixels in zip(shape, image_size, strict=True))
        for shape in shapes
    ]


def _taps(
    boxes: Tensor, shapes: Sequence[tuple[int, int]], *, size: int, image_size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the cells of each bin, numbered over the levels of an image, and their weights.

    boxes [R, 4] -> int32 and float32 [R, size, size, T, T], T two cells for each sample.
    """
    strides = np.array(level_strides(shapes, image_size))
    chosen = region_levels(boxes, finest=round(math.log2(strides[0, 0])), count=len(shapes))
    first = np.cumsum([0] + [height * width for height, width in shapes[:-1]])

    def of_level(values: ArrayLike, kind: str) -> Tensor:
        return ops.take(ops.convert_to_tensor(np.asarray(values, kind)), chosen, axis=0)

    counts = of_level(shapes, "int32")  # [R, 2]
    scale = of_level(1 / strides, "float32")
    numbers, weights = _axis_taps(boxes[:, :2] * scale, boxes[:, 2:] * scale, counts, size=size)  # [R, 2, size, T]
    of_rows = of_level(first, "int32")[:, None, None] + numbers[:, 0] * counts[:, 1, None, None]
    return (
        of_rows[:, :, None, :, None] + numbers[:, 1][:, None, :, None, :],
        weights[:, 0][:, :, None, :, None] * weights[:, 1][:, None, :, None, :],
    )


def _axis_taps(low: Tensor, high: Tensor, counts: Tensor, *, size: int) -> tuple[Tensor, Tensor]:
    """Return cells of bins and their weights on one axis. low, high [...] in cells, counts [...] -> [..., size, T]."""
    places = np.float32((np.arange(SAMPLES * size) + 0.5) / (SAMPLES * size))
    samples = low[..., None] + ops.maximum(high - low, 1.0)[..., None] * places  # all bins
    limit = ops.cast(counts, "float32")[..., None]
    inside = ops.logical_and(samples >= -1.0, samples <= limit)
    samples = ops.clip(samples, 0.0, limit - 1.0)  # constant beyond the center of the last cell
    lower = ops.floor(samples)
    share = samples - lower
    weights = ops.where(inside[..., None], ops.stack([1.0 - share, share], axis=-1), 0.0) / SAMPLES
    lower = ops.cast(lower, "int32")
    numbers = ops.stack([lower, ops.minimum(lower + 1, counts[..., None] - 1)], axis=-1)
    shape = (-1, *low.shape[1:], size, 2 * SAMPLES)
    return ops.reshape(numbers, shape), ops.reshape(weights, shape)
