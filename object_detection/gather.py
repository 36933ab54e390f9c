"""Gathering and scattering of entries per image."""

from keras import ops

from object_detection.structures import Tensor


def entries(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the entries of each image with the given numbers: [B, N, ...], [B, n] int32 -> [B, n, ...].

    `take_along_axis` does the same, but with TensorFlow as the backend it transposes all values at each call.
    """
    count = ops.shape(values)[1]
    first = count * ops.arange(ops.shape(values)[0], dtype="int32")[:, None]
    return ops.take(ops.reshape(values, (-1, *values.shape[2:])), first + numbers, axis=0)


def scattered(values: Tensor, places: Tensor, count: int) -> Tensor:
    """Return [B, count] with `values` [B, L] at `places` [B, L], and 0 elsewhere."""
    images = ops.shape(values)[0]
    flat = places + count * ops.arange(images, dtype="int32")[:, None]
    filled = ops.scatter(ops.reshape(flat, (-1, 1)), ops.reshape(values, (-1,)), (images * count,))
    return ops.reshape(filled, (-1, count))
