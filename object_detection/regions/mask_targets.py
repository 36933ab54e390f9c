"""Mask targets of regions: the masks of their objects, resampled to the regions by RoIAlign.

A bin is the mean of samples on a grid, so both axes are sampled one after the other. A region has a matrix of weights
for rows and one for columns, and never as many values as the image has pixels.
"""

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-6  # pixels; for frames of padding


def mask_targets(
    masks: Tensor,
    frames: Tensor,
    regions: Tensor,
    matched: Tensor,
    sizes: Tensor,
    *,
    size: int = 28,
    most_samples: int = 8,
    whole: bool = False,
) -> Tensor:
    """Return the fraction of each cell of a region that its object covers. -> [B, N, size, size] float32.

    As torchvision's RoIAlign of the object's bitmap: interpolated between the centers of cells, 0 outside of the frame,
    and constant beyond the border of the image. Coordinates are relative to the center of the first pixel. A side is at
    least 1 pixel. A bin has one sample per pixel, rounded up, on each axis, at most `most_samples`; that is all of them
    up to size * most_samples pixels.

    Args:
        masks: [B, M, h, w] uint8, 0 or 1 in the h x w cells of the frames.
        frames: [B, M, 4], the objects' boxes, or the complete image; yxyx pixels.
        regions: [B, N, 4] within the image, yxyx pixels.
        matched: [B, N] int32, the objects of the regions.
        sizes: [B, 2], height and width of the images.
        size: cells per side of the targets.
        most_samples: maximum number of samples of a bin per axis.
        whole: one sample per cell, in its center; targets are 1 if it is at least one half, else 0.
    """
    most_samples = 1 if whole else most_samples
    framed = entries(frames, matched)
    weights = [
        _weights(
            regions[..., axis::2],
            framed[..., axis::2],
            ops.cast(sizes[:, axis, None], "float32"),
            cells=masks.shape[2 + axis],
            size=size,
            most_samples=most_samples,
        )
        for axis in (0, 1)
    ]
    rows = ops.matmul(weights[0], ops.cast(entries(masks, matched), "float32"))  # [B, N, size, w]
    shares = ops.matmul(rows, ops.swapaxes(weights[1], -1, -2))
    return ops.cast(shares >= 0.5, "float32") if whole else shares


def _weights(regions: Tensor, frames: Tensor, sides: Tensor, *, cells: int, size: int, most_samples: int) -> Tensor:
    """Return the weight of each of the frame's cells in each of the region's, along one axis.

    regions, frames [B, N, 2] from and to, sides [B, 1] of the images -> [B, N, size, cells].
    """
    low, length = regions[..., :1], ops.maximum(regions[..., 1:] - regions[..., :1], 1.0)
    samples = ops.minimum(ops.ceil(length / size), most_samples)
    scale = cells / ops.maximum(frames[..., 1:] - frames[..., :1], _SMALLEST_SIDE)
    # Cells further out are 0; at the border of the image the last cell is extended
    first = ops.where(frames[..., :1] <= 0.0, 0.0, -1.0)
    last = ops.where(frames[..., 1:] >= sides[..., None], cells - 1.0, float(cells))

    def of_sample(number: int) -> Tensor:
        places = low + (np.arange(size, dtype=np.float32) + (number + 0.5) / samples) * (length / size)
        places = ops.clip((places + 0.5 - frames[..., :1]) * scale - 0.5, first, last)  # [B, N, size]
        hats = ops.maximum(1.0 - ops.abs(places[..., None] - np.arange(cells, dtype=np.float32)), 0.0)
        return ops.where((number < samples)[..., None], hats / samples[..., None], 0.0)

    total = of_sample(0)
    for number in range(1, most_samples):
        total = total + of_sample(number)
    return total
