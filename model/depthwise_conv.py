"""Depthwise convolution whose gradient is quick on a CPU too."""

import keras

from model import tensorflow_cpu

_WIDEST_QUICK_KERNEL = 3


@keras.saving.register_keras_serializable("efficientdet")
class DepthwiseConv2D(keras.layers.DepthwiseConv2D):
    """Keras's layer; only how TensorFlow computes the gradient of a wide kernel on a CPU differs."""

    def call(self, inputs):
        """[B, H, W, C] -> [B, h, w, C]."""
        narrow = self.kernel_size[1] <= _WIDEST_QUICK_KERNEL
        if narrow or self.padding != "same" or self.use_bias or not tensorflow_cpu.applies():
            return super().call(inputs)
        return tensorflow_cpu.depthwise_conv(inputs, self.kernel, stride=self.strides[0])
