"""Initial values of a network, drawn by NumPy on the host.

Keras's initializers under JAX compile a program for each shape: half a minute on a GPU for the hundred shapes of D0.
"""

import math
from functools import partial

import keras
import numpy as np
from keras import ops
from keras.initializers import Constant, Initializer, Ones, RandomNormal, RandomUniform, VarianceScaling, Zeros

from object_detection.structures import Tensor

_TRUNCATED = 0.8796256610342398  # standard deviation of the standard normal distribution between -2 and 2


def draw_on_host(network: keras.Model) -> None:
    """Make NumPy draw the initial values of a network that was built in a `keras.StatelessScope`.

    The distributions and seeds are those of Keras's initializers, the numbers are not. A variable with an initializer
    of another package keeps it. Keras calls the initializers at the end of the scope and has no public way to replace
    them.
    """
    for variable in network.variables:
        if type(variable._initializer).__module__.startswith("keras."):
            variable._initializer = partial(_initial_value, variable._initializer)


def _initial_value(initializer: Initializer, shape: tuple[int, ...], dtype: str) -> Tensor:
    values = _draw(initializer, shape)
    return initializer(shape, dtype) if values is None else ops.convert_to_tensor(values, dtype)


def _draw(initializer: Initializer, shape: tuple[int, ...]) -> np.ndarray | None:
    match initializer:
        case Zeros():
            return np.zeros(shape)
        case Ones():
            return np.ones(shape)
        case Constant():
            return np.full(shape, initializer.value)
    if not isinstance(initializer, RandomNormal | RandomUniform | VarianceScaling):
        return None
    random = np.random.default_rng(initializer.seed)
    if isinstance(initializer, RandomNormal):
        return random.normal(initializer.mean, initializer.stddev, shape)
    if isinstance(initializer, RandomUniform):
        return random.uniform(initializer.minval, initializer.maxval, shape)
    if len(shape) < 2:
        return None
    field = math.prod(shape[:-2])
    fans = {"fan_in": field * shape[-2], "fan_out": field * shape[-1], "fan_avg": field * (shape[-2] + shape[-1]) / 2}
    deviation = math.sqrt(initializer.scale / fans[initializer.mode])
    if initializer.distribution == "uniform":
        return random.uniform(-1.0, 1.0, shape) * math.sqrt(3.0) * deviation
    values = random.standard_normal(shape)
    if initializer.distribution == "truncated_normal":
        deviation /= _TRUNCATED
        while (outside := np.abs(values) > 2.0).any():
            values[outside] = random.standard_normal(outside.sum())
    return values * deviation
