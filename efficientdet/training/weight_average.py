"""The moving average of all weights, batch statistics included (the published figures are the average's)."""

import keras
import numpy as np
from keras import ops

from efficientdet.training.packing import Packing


class WeightAverage:
    """average += (1 - d) (weight - average) after every applied step t = 1, 2, .., d = min(decay, (1 + t) / (10 + t)).

    It starts at the weights themselves; with the warmed-up decay the first steps are forgotten within a few dozen anyway.
    """

    def __init__(self, variables: list[keras.Variable], *, decay: float):
        self.decay = decay
        self.variables = variables
        self.packing = Packing([variable.shape for variable in variables])
        values = self.packing.pack([variable.value for variable in variables])
        # A copy by way of NumPy: a keras.Variable may share the memory of what it is made from.
        self.packed = keras.Variable(np.array(values), trainable=False, name="average")

    @property
    def averages(self) -> list:
        """The average of each variable, float32."""
        return self.packing.unpack(self.packed.value)

    def update(self, step, *, applied=True):
        """After applied step `step` (1 is the first); nothing where `applied` is False. Returns the packed averages."""
        values = [variable.value for variable in self.variables]
        packed = self.updated(self.packed.value, values, step=step, applied=applied)
        self.packed.assign(packed)
        return packed

    def updated(self, packed, values: list, *, step, applied=True):
        """The packed averages after one more step, as a function without state."""
        step = ops.cast(step, "float32")
        share = 1.0 - ops.minimum(self.decay, (1.0 + step) / (10.0 + step))
        # Chosen, not multiplied by 0: what a skipped step left in the batch statistics may be NaN.
        return ops.where(applied, packed + share * (self.packing.pack(values) - packed), packed)
