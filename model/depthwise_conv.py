"""Depthwise convolution with a gradient that is fast on a CPU too."""

import keras

from model import tensorflow_cpu
from object_detection.structures import Tensor

_WIDEST_QUICK_KERNEL = 3


@keras.saving.register_keras_serializable("efficientdet")
class DepthwiseConv2D(keras.layers.DepthwiseConv2D):
    """Keras's layer, with a different gradient for wide kernels in TensorFlow on a CPU."""

    def call(self, inputs: Tensor) -> Tensor:
        """Convolve [B, H, W, C] to [B, h, w, C]."""
        narrow = self.kernel_size[1] <= _WIDEST_QUICK_KERNEL
        if narrow or self.padding != "same" or self.use_bias or not tensorflow_cpu.applies():
            return super().call(inputs)
        return tensorflow_cpu.depthwise_conv(inputs, self.kernel, stride=self.strides[0])
