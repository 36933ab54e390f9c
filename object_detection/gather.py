"""Gathering of entries per image."""

from keras import ops

from object_detection.structures import Tensor


def entries(values: Tensor, numbers: Tensor) -> Tensor:
    """Return the entries of each image with the given numbers: [B, N, ...], [B, n] int32 -> [B, n, ...].

    `take_along_axis` does the same, but with TensorFlow as the backend it transposes all values at each call.
    """
    count = ops.shape(values)[1]
    first = count * ops.arange(ops.shape(values)[0], dtype="int32")[:, None]
    return ops.take(ops.reshape(values, (-1, *values.shape[2:])), first + numbers, axis=0)
