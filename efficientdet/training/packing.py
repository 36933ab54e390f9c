"""Many tensors as one vector: one kernel then does what would take one for each of a network's hundreds of weights.

At small images the update of weights and averages, thousands of kernels of a few microseconds each, costs more than the
network; packed it is a few passes over one vector, and one message where several processes sum their gradients.
"""

import math
from collections.abc import Sequence

import numpy as np
from keras import ops


class Packing:
    """Where each tensor lies in the vector: one after the other, in the order of `shapes`, rows first."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]):
        self.shapes = [tuple(shape) for shape in shapes]
        sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(sizes)
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]

    def pack(self, tensors: Sequence, dtype: str = "float32"):
        """The tensors as one vector, [size]."""
        return ops.concatenate([ops.reshape(ops.cast(tensor, dtype), (-1,)) for tensor in tensors])

    def unpack(self, vector) -> list:
        """The tensors of a vector [size], of its type."""
        parts = ops.split(vector, self._ends) if self._ends else [vector]  # TensorFlow cannot split at no place
        return [ops.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def arrays(self, vector) -> list[np.ndarray]:
        """The tensors of a vector [size] as NumPy arrays: one copy off the device instead of one for each."""
        parts = np.split(np.asarray(vector), self._ends)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
