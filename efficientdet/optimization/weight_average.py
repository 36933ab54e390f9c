"""Exponential moving average (EMA) of all weights, including batch statistics; published metrics are of the average."""

import keras
import numpy as np
from keras import ops

from efficientdet.optimization.packing import Packing


class WeightAverage:
    """Moving average: average += (1 - d) (weight - average) after each applied step t.

    d = min(decay, (1 + t) / (10 + t)). The average starts at the initial weights, whose influence vanishes within a few
    dozen steps because d starts small.

    parts: the size of the packed average is divisible by it.
    """

    def __init__(self, variables: list[keras.Variable], *, decay: float, parts: int = 1):
        self.decay = decay
        self.variables = variables
        self.packing = Packing([variable.shape for variable in variables], parts=parts)
        values = self.packing.pack([variable.value for variable in variables])
        # A copy through NumPy: a keras.Variable may share memory with its initial value.
        self.packed = keras.Variable(np.array(values), trainable=False, name="average")

    @property
    def averages(self) -> list:
        """The average of each variable, float32."""
        return self.packing.unpack(self.packed.value)

    def update(self, step, *, applied=True):
        """Update the average after step `step` (1 is the first) if `applied`; return the packed averages."""
        values = [variable.value for variable in self.variables]
        packed = self.updated(self.packed.value, values, step=step, applied=applied)
        self.packed.assign(packed)
        return packed

    def updated(self, packed, values: list, *, step, applied=True):
        """Return the packed averages after one more step, as a pure function."""
        step = ops.cast(step, "float32")
        share = 1.0 - ops.minimum(self.decay, (1.0 + step) / (10.0 + step))
        # Selected, not multiplied by 0: a skipped step may leave NaN in the batch statistics.
        return ops.where(applied, packed + share * (self.packing.pack(values) - packed), packed)
