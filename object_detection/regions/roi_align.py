"""RoIAlign: the features of regions, each from the level of a pyramid that suits its size (He et al. 2017, section 3).

A bin is the mean of 2 x 2 samples, a sample is interpolated between four cells. Both are separable: a bin is a weighted sum of
4 rows x 4 columns of cells. So the levels become one list of cells, and features of regions are weighted sums of 16 of these;
of 4 with one sample a bin.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from keras import ops

from object_detection.structures import Tensor

CANONICAL_SIDE, CANONICAL_LEVEL = 224.0, 4  # Lin et al. 2017, eq. 1


@dataclass(frozen=True, kw_only=True)
class RegionPooling:
    """How regions are read; the defaults are torchvision's.

    samples: of a bin, on each axis. least_side: cells that a side counts as at least. level_slack: what is added before a level
    is rounded down. levels: from how many of the pyramid's, finest first, a region may be read.
    """

    samples: int = 2
    least_side: float = 1.0
    level_slack: float = 1e-6
    levels: int = 4


TORCHVISION_POOLING = RegionPooling()


def roi_align(levels: Sequence[Tensor], boxes: Tensor, **settings) -> Tensor:
    """`features_of_regions` of the boxes [B, N, 4] of each image: [B, N, size, size, C]."""
    count = boxes.shape[1]
    images = ops.arange(ops.shape(boxes)[0] * count, dtype="int32") // count
    pooled = features_of_regions(levels, ops.reshape(boxes, (-1, 4)), images, **settings)
    return ops.reshape(pooled, (-1, count, *pooled.shape[1:]))


def features_of_regions(
    levels: Sequence[Tensor], boxes: Tensor, images: Tensor, *, size: int, image_size: tuple[int, int],
    pooling: RegionPooling = TORCHVISION_POOLING,
    weighted_sums: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """The features of each box. levels of [B, h, w, C], finest first, boxes [R, 4] yxyx pixels of the `images` [R] int32, by
    number -> [R, size, size, C].

    image_size: height and width of the network input, of which a level's stride is a power of two. As torchvision's
    MultiScaleRoIAlign: coordinates are not shifted by half a cell, sides count as one cell at least, samples more than a cell
    outside are 0. Differentiable in the levels, not in the boxes. weighted_sums: `gathered_sums`, or what computes the same
    in another way.
    """
    shapes = [tuple(level.shape[1:3]) for level in levels]
    cells = ops.concatenate([ops.reshape(level, (-1, height * width, level.shape[-1]))
                             for level, (height, width) in zip(levels, shapes, strict=True)], axis=1)
    per_image, channels = cells.shape[1:]
    numbers, weights = _taps(ops.stop_gradient(boxes), shapes, size=size, image_size=image_size, pooling=pooling)
    taps = (2 * pooling.samples) ** 2  # each sample between two cells
    numbers = ops.reshape(numbers + per_image * ops.reshape(images, (-1, 1, 1, 1, 1)), (-1, taps))
    pooled = (weighted_sums or gathered_sums)(ops.reshape(cells, (-1, channels)), numbers, ops.reshape(weights, (-1, taps)))
    return ops.reshape(pooled, (-1, size, size, channels))


def gathered_sums(rows: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows [K, C]: numbers [R, T] int32 and weights [R, T] float32 of T of them -> [R, C] of rows' precision.

    Summed in float32, and so is the gradient; differentiable in the rows.
    """
    exact, weights = ops.cast(rows, "float32"), ops.stop_gradient(weights)
    # In parts, as without XLA each stands in memory
    parts = [slice(first, first + 4) for first in range(0, numbers.shape[1], 4)]
    sums = [ops.sum(ops.take(exact, numbers[:, part], axis=0) * weights[:, part, None], axis=1) for part in parts]
    return ops.cast(sum(sums[1:], sums[0]), rows.dtype)


def region_levels(boxes: Tensor, *, finest: int, count: int, slack: float = TORCHVISION_POOLING.level_slack) -> Tensor:
    """Which of `count` levels, the first of stride 2^finest, each box is read from. [..., 4] -> [...] int32, 0 .. count - 1."""
    sides = ops.sqrt((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1]))
    wanted = ops.floor(CANONICAL_LEVEL + ops.log2(sides / CANONICAL_SIDE) + slack)
    return ops.cast(ops.clip(wanted, finest, finest + count - 1), "int32") - finest


def level_strides(shapes: Sequence[tuple[int, int]], image_size: tuple[int, int]) -> list[tuple[int, int]]:
    """Pixels of a cell of each level, from rows and columns of its cells and of the image: powers of two."""
    return [tuple(2 ** round(math.log2(pixels / cells)) for cells, pixels in zip(shape, image_size, strict=True))
            for shape in shapes]


def _taps(
    boxes: Tensor, shapes: Sequence[tuple[int, int]], *, size: int, image_size: tuple[int, int], pooling: RegionPooling
) -> tuple[Tensor, Tensor]:
    """The cells that each bin is made of, counted over the levels of an image, and their weights.

    boxes [R, 4] -> int32 and float32 [R, size, size, T, T], T two cells of each sample.
    """
    strides = np.array(level_strides(shapes, image_size))
    chosen = region_levels(boxes, finest=round(math.log2(strides[0, 0])), count=len(shapes), slack=pooling.level_slack)
    first = np.cumsum([0] + [height * width for height, width in shapes[:-1]])

    def of_level(values, kind):
        return ops.take(ops.convert_to_tensor(np.asarray(values, kind)), chosen, axis=0)

    counts = of_level(shapes, "int32")  # [R, 2]
    scale = of_level(1 / strides, "float32")
    numbers, weights = _axis_taps(boxes[:, :2] * scale, boxes[:, 2:] * scale, counts, size=size,
                                  pooling=pooling)  # [R, 2, size, T]
    of_rows = of_level(first, "int32")[:, None, None] + numbers[:, 0] * counts[:, 1, None, None]
    return (of_rows[:, :, None, :, None] + numbers[:, 1][:, None, :, None, :],
            weights[:, 0][:, :, None, :, None] * weights[:, 1][:, None, :, None, :])


def _axis_taps(low: Tensor, high: Tensor, counts: Tensor, *, size: int, pooling: RegionPooling) -> tuple[Tensor, Tensor]:
    """Along one axis: the cells of each bin and their weights. low, high [...] in cells, counts [...] -> [..., size, T]."""
    places = np.float32((np.arange(pooling.samples * size) + 0.5) / (pooling.samples * size))
    samples = low[..., None] + ops.maximum(high - low, pooling.least_side)[..., None] * places  # of all bins
    limit = ops.cast(counts, "float32")[..., None]
    inside = ops.logical_and(samples >= -1.0, samples <= limit)
    samples = ops.clip(samples, 0.0, limit - 1.0)  # beyond the middle of the last cell it stays what it is there
    before = ops.floor(samples)
    share = samples - before
    weights = ops.where(inside[..., None], ops.stack([1.0 - share, share], axis=-1), 0.0) / pooling.samples
    before = ops.cast(before, "int32")
    numbers = ops.stack([before, ops.minimum(before + 1, counts[..., None] - 1)], axis=-1)
    shape = (-1, *low.shape[1:], size, 2 * pooling.samples)
    return ops.reshape(numbers, shape), ops.reshape(weights, shape)
