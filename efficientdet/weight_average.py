"""The moving average of all weights, batch statistics included (the published figures are the average's)."""

import keras
import numpy as np
from keras import ops


class WeightAverage:
    """average += (1 - d) (weight - average) after every applied step t = 1, 2, .., d = min(decay, (1 + t) / (10 + t)).

    It starts at the weights themselves; with the warmed-up decay the first steps are forgotten within a few dozen anyway.
    """

    def __init__(self, variables: list[keras.Variable], *, decay: float):
        self.decay = decay
        self.variables = variables
        # A copy by way of NumPy: a keras.Variable made from a tf.Variable does not copy it, it is that variable.
        self.averages = [keras.Variable(np.asarray(variable.value).astype("float32"), trainable=False,
                                        name=variable.name + "_average")
                         for variable in variables]

    def update(self, step, *, applied=True) -> None:
        """After applied step `step` (1 is the first); nothing where `applied` is False."""
        for average, value in zip(self.averages, self.updated(
                [average.value for average in self.averages], [variable.value for variable in self.variables],
                step=step, applied=applied), strict=True):
            average.assign(value)

    def updated(self, averages: list, values: list, *, step, applied=True) -> list:
        """The averages after one more step, as a function without state."""
        step = ops.cast(step, "float32")
        share = 1.0 - ops.minimum(self.decay, (1.0 + step) / (10.0 + step))
        # Chosen, not multiplied by 0: what a skipped step left in the batch statistics may be NaN.
        return [ops.where(applied, average + share * (ops.cast(value, "float32") - average), average)
                for average, value in zip(averages, values, strict=True)]
