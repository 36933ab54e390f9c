"""Activation layers by name, with a faster SiLU."""

import math

import keras
from keras import ops

from model import tensorflow_cpu
from object_detection.structures import Tensor

_SMALL = 2**14  # numbers per image; below this a compiled program costs more to call than it saves


@keras.saving.register_keras_serializable("efficientdet")
class SiLU(keras.layers.Layer):
    """SiLU, x sigmoid(x), computed as a product: Keras's own computes the sigmoid again for its gradient. Any shape."""

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Return the activations, of the same shape as the inputs."""
        large = None not in inputs.shape[1:] and math.prod(inputs.shape[1:]) > _SMALL
        if training and large and tensorflow_cpu.applies() and not isinstance(inputs, keras.KerasTensor):
            return tensorflow_cpu.silu(inputs)
        return inputs * ops.sigmoid(inputs)


def activation_layer(activation: str, *, name: str | None = None) -> keras.layers.Layer:
    """Return Keras's activation with the given name, or `SiLU` for "silu"."""
    return SiLU(name=name) if activation in ("silu", "swish") else keras.layers.Activation(activation, name=name)
