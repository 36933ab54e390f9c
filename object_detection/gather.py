"""Some of the entries of each image."""

from keras import ops

from object_detection.structures import Tensor


def entries(values: Tensor, numbers: Tensor) -> Tensor:
    """Each image's entries of those numbers: [B, N, ...], [B, n] int32 -> [B, n, ...].

    What `take_along_axis` does too; with TensorFlow under it that one transposes all values at each call.
    """
    count = ops.shape(values)[1]
    first = count * ops.arange(ops.shape(values)[0], dtype="int32")[:, None]
    return ops.take(ops.reshape(values, (-1, *values.shape[2:])), first + numbers, axis=0)
