"""Convolution in groups of channels that is quick on a CPU too."""

import keras

from model import tensorflow_cpu
from object_detection.structures import Tensor


@keras.saving.register_keras_serializable("efficientdet")
class GroupedConv2D(keras.layers.Conv2D):
    """Keras's layer; only how TensorFlow computes it on a CPU differs."""

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """[B, H, W, C] and [k, k, C / groups, F] -> [B, h, w, F]."""
        if not tensorflow_cpu.applies():
            return super().convolution_op(inputs, kernel)
        return tensorflow_cpu.grouped_conv(inputs, kernel, strides=self.strides, padding=self.padding,
                                           dilations=self.dilation_rate)
