"""Normalization of input images."""

import numpy as np
from keras import ops

from object_detection.structures import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # red, green, blue of pixels in 0 .. 1
IMAGENET_STDDEV = (0.229, 0.224, 0.225)


def normalized(
    images: Tensor,
    sizes: Tensor,
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    stddev: tuple[float, float, float] = IMAGENET_STDDEV,
) -> Tensor:
    """Return float32 images from uint8 [B, H, W, 3]: (image / 255 - mean) / stddev, and 0 outside `sizes` [B, 2]."""
    values = (ops.cast(images, "float32") / 255.0 - np.array(mean, np.float32)) / np.array(stddev, np.float32)
    rows = ops.arange(images.shape[1])[None, :, None] < ops.cast(sizes[:, 0], "int32")[:, None, None]
    columns = ops.arange(images.shape[2])[None, None, :] < ops.cast(sizes[:, 1], "int32")[:, None, None]
    return ops.where(ops.logical_and(rows, columns)[..., None], values, 0.0)
