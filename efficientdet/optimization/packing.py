"""Packing of many tensors into one vector, so that one kernel replaces hundreds.

With small images the update of weights and averages, thousands of kernels of a few microseconds each, takes longer than
the network. Packed, it is a few passes over one vector, and several processes sum their gradients in one message.
"""

import math
from collections.abc import Sequence

import numpy as np
from keras import ops


class Packing:
    """Layout of tensors in a vector: one after the other in the order of `shapes`, in row-major order.

    The vector ends with zeros where its size would not be divisible by `parts`.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], *, parts: int = 1):
        self.shapes = [tuple(shape) for shape in shapes]
        sizes = [math.prod(shape) for shape in self.shapes]
        self._padding = -sum(sizes) % parts
        self.size = sum(sizes) + self._padding
        self._ends = [sum(sizes[: i + 1]) for i in range(len(sizes) if self._padding else len(sizes) - 1)]

    def pack(self, tensors: Sequence, dtype: str = "float32"):
        """Return the tensors as one vector, [size]."""
        padding = [ops.zeros(self._padding, dtype)] if self._padding else []
        return ops.concatenate([*(ops.reshape(ops.cast(tensor, dtype), (-1,)) for tensor in tensors), *padding])

    def unpack(self, vector) -> list:
        """Return the tensors of a vector [size], with its dtype."""
        # TensorFlow cannot split at an empty list of places. Padding is one part more.
        parts = ops.split(vector, self._ends) if self._ends else [vector]
        return [ops.reshape(part, shape) for part, shape in zip(parts, self.shapes, strict=False)]

    def arrays(self, vector) -> list[np.ndarray]:
        """Return the tensors of a vector [size] as NumPy arrays, with one copy from the device."""
        parts = np.split(np.asarray(vector), self._ends)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=False)]
