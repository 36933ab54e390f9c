"""Mask targets of regions: the masks of their objects, resampled to the regions by RoIAlign.

A bin is the mean of samples on a grid, so both axes are sampled one after the other. A region has a matrix of weights
for rows and one for columns, and never as many values as the image has pixels.
"""

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-6  # pixels; for boxes of padding


def mask_targets(
    masks: Tensor,
    mask_boxes: Tensor,
    regions: Tensor,
    matched: Tensor,
    sizes: Tensor,
    *,
    size: int = 28,
    max_samples: int = 8,
    binary: bool = False,
) -> Tensor:
    """Return the fraction of each cell of a region that its object covers. -> [B, N, size, size] float32.

    As torchvision's RoIAlign of the object's bitmap: interpolated between the centers of cells, 0 outside of its box,
    and constant beyond the border of the image. Coordinates are relative to the center of the first pixel. A side is at
    least 1 pixel. A bin has one sample per pixel, rounded up, on each axis, but at most `max_samples`,
    which is a limit for sides above size * max_samples pixels only.

    Args:
        masks: [B, M, h, w] uint8, 0 or 1 in the h x w cells of the mask's box.
        mask_boxes: [B, M, 4], the objects' boxes, or the complete image; yxyx pixels.
        regions: [B, N, 4] within the image, yxyx pixels.
        matched: [B, N] int32, the objects of the regions.
        sizes: [B, 2], height and width of the images.
        size: cells per side of the targets.
        max_samples: maximum number of samples of a bin per axis.
        binary: one sample per cell, in its center; targets are 1 if it is at least one half, else 0.
    """
    max_samples = 1 if binary else max_samples
    own_boxes = entries(mask_boxes, matched)
    weights = [
        _weights(
            regions[..., axis::2],
            own_boxes[..., axis::2],
            ops.cast(sizes[:, axis, None], "float32"),
            cells=masks.shape[2 + axis],
            size=size,
            max_samples=max_samples,
        )
        for axis in (0, 1)
    ]
    rows = ops.matmul(weights[0], ops.cast(entries(masks, matched), "float32"))  # [B, N, size, w]
    shares = ops.matmul(rows, ops.swapaxes(weights[1], -1, -2))
    return ops.cast(shares >= 0.5, "float32") if binary else shares


def _weights(regions: Tensor, mask_boxes: Tensor, sides: Tensor, *, cells: int, size: int, max_samples: int) -> Tensor:
    """Return the weight of each cell of the mask in each cell of the region, along one axis.

    regions, mask_boxes [B, N, 2] from and to, sides [B, 1] of the images -> [B, N, size, cells].
    """
    low, length = regions[..., :1], ops.maximum(regions[..., 1:] - regions[..., :1], 1.0)
    samples = ops.minimum(ops.ceil(length / size), max_samples)
    scale = cells / ops.maximum(mask_boxes[..., 1:] - mask_boxes[..., :1], _SMALLEST_SIDE)
    # Cells further out are 0; at the border of the image the last cell is extended
    first = ops.where(mask_boxes[..., :1] <= 0.0, 0.0, -1.0)
    last = ops.where(mask_boxes[..., 1:] >= sides[..., None], cells - 1.0, float(cells))

    def of_sample(number: int) -> Tensor:
        places = low + (np.arange(size, dtype=np.float32) + (number + 0.5) / samples) * (length / size)
        places = ops.clip((places + 0.5 - mask_boxes[..., :1]) * scale - 0.5, first, last)  # [B, N, size]
        hats = ops.maximum(1.0 - ops.abs(places[..., None] - np.arange(cells, dtype=np.float32)), 0.0)
        return ops.where((number < samples)[..., None], hats / samples[..., None], 0.0)

    total = of_sample(0)
    for number in range(1, max_samples):
        total = total + of_sample(number)
    return total
