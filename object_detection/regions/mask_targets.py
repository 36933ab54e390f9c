"""What the mask of a region is to be: its object's mask, read in the region's own cells by RoIAlign.

A bin is the mean of samples on a grid, so both axes are read one after the other: a region has a matrix of weights for rows
and one for columns, and never as many values as the image has pixels.
"""

import numpy as np
from keras import ops

from object_detection.gather import entries
from object_detection.structures import Tensor

_SMALLEST_SIDE = 1e-6  # pixels; of frames of padding


def mask_targets(
    masks: Tensor, frames: Tensor, regions: Tensor, matched: Tensor, sizes: Tensor, *, size: int = 28, most_samples: int = 8,
    whole: bool = False,
) -> Tensor:
    """How much of each cell of a region its object covers, from 0 to 1. -> [B, N, size, size] float32.

    masks [B, M, h, w] uint8, 0 or 1 in the h x w cells of frames [B, M, 4]: the objects' boxes, or the whole image; regions
    [B, N, 4] within the image, matched [B, N] int32 their objects; sizes [B, 2] of the images. Boxes yxyx pixels.

    As torchvision's RoIAlign of the object's bitmap: interpolated between the middles of cells, 0 outside of the frame, but
    beyond the border of the image as within; coordinates count from the middle of the first pixel; a side is 1 pixel at least,
    and a bin has a sample for each pixel it has begun, on each axis, up to `most_samples`: all of them up to
    size * most_samples pixels. `whole`: a cell has one sample, in its middle, and is object, 1, where that is one half or more,
    and else 0.
    """
    most_samples = 1 if whole else most_samples
    framed = entries(frames, matched)
    weights = [_weights(regions[..., axis::2], framed[..., axis::2], ops.cast(sizes[:, axis, None], "float32"),
                        cells=masks.shape[2 + axis], size=size, most_samples=most_samples) for axis in (0, 1)]
    rows = ops.matmul(weights[0], ops.cast(entries(masks, matched), "float32"))  # [B, N, size, w]
    shares = ops.matmul(rows, ops.swapaxes(weights[1], -1, -2))
    return ops.cast(shares >= 0.5, "float32") if whole else shares


def _weights(regions: Tensor, frames: Tensor, sides: Tensor, *, cells: int, size: int, most_samples: int) -> Tensor:
    """The share of each of the frame's cells in each of the region's, along one axis.

    regions, frames [B, N, 2] from and to, sides [B, 1] of the images -> [B, N, size, cells].
    """
    low, length = regions[..., :1], ops.maximum(regions[..., 1:] - regions[..., :1], 1.0)
    samples = ops.minimum(ops.ceil(length / size), most_samples)
    scale = cells / ops.maximum(frames[..., 1:] - frames[..., :1], _SMALLEST_SIDE)
    # A cell further out there is nothing; on the border of the image the last cell continues
    first = ops.where(frames[..., :1] <= 0.0, 0.0, -1.0)
    last = ops.where(frames[..., 1:] >= sides[..., None], cells - 1.0, float(cells))

    def of_sample(number):
        places = low + (np.arange(size, dtype=np.float32) + (number + 0.5) / samples) * (length / size)
        places = ops.clip((places + 0.5 - frames[..., :1]) * scale - 0.5, first, last)  # [B, N, size]
        hats = ops.maximum(1.0 - ops.abs(places[..., None] - np.arange(cells, dtype=np.float32)), 0.0)
        return ops.where((number < samples)[..., None], hats / samples[..., None], 0.0)

    total = of_sample(0)
    for number in range(1, most_samples):
        total = total + of_sample(number)
    return total
