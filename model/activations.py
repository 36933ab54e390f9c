"""Activations as layers, by name; SiLU in the form that costs least."""

import math

import keras
from keras import ops

from model import tensorflow_cpu

_SMALL = 2**14  # numbers of one image; calling a program of its own would cost more than they do


@keras.saving.register_keras_serializable("efficientdet")
class SiLU(keras.layers.Layer):
    """x sigmoid(x), as a product: Keras's own computes the sigmoid again for its gradient. [B, ..] -> the same shape."""

    def call(self, inputs, training=None):
        """As the class says."""
        large = None not in inputs.shape[1:] and math.prod(inputs.shape[1:]) > _SMALL
        if training and large and tensorflow_cpu.applies() and not isinstance(inputs, keras.KerasTensor):
            return tensorflow_cpu.silu(inputs)
        return inputs * ops.sigmoid(inputs)


def activation_layer(activation: str, *, name: str | None = None) -> keras.layers.Layer:
    """Keras's activation of that name, except for `silu`."""
    return SiLU(name=name) if activation in ("silu", "swish") else keras.layers.Activation(activation, name=name)
