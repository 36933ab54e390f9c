"""Activations as layers, by name; SiLU in the form whose gradient costs least."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("efficientdet")
class SiLU(keras.layers.Layer):
    """x sigmoid(x), as a product. [B, ..] -> the same shape.

    TensorFlow's own SiLU computes the sigmoid anew for its gradient, in eight passes over memory; that of the product takes
    four. On a CPU that is a quarter of what the activations of a training step cost.
    """

    def call(self, inputs):
        """As the class says."""
        return inputs * ops.sigmoid(inputs)


def activation_layer(activation: str, *, name: str | None = None) -> keras.layers.Layer:
    """Keras's activation of that name, except for `silu`."""
    return SiLU(name=name) if activation in ("silu", "swish") else keras.layers.Activation(activation, name=name)
