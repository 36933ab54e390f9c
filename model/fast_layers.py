"""Layers that are faster than Keras's, also on a CPU, activations by name, and the normalization of input images."""

import math

import keras
import numpy as np
from keras import ops

from model import tensorflow_cpu
from object_detection.structures import Tensor

_SMALL = 2**14  # numbers per image; below this a compiled program costs more to call than it saves
_WIDEST_QUICK_KERNEL = 3


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


@keras.saving.register_keras_serializable("efficientdet")
class DepthwiseConv2D(keras.layers.DepthwiseConv2D):
    """Keras's layer, with a different gradient for wide kernels in TensorFlow on a CPU."""

    def call(self, inputs: Tensor) -> Tensor:
        """Convolve [B, H, W, C] to [B, h, w, C]."""
        narrow = self.kernel_size[1] <= _WIDEST_QUICK_KERNEL
        if narrow or self.padding != "same" or self.use_bias or not tensorflow_cpu.applies():
            return super().call(inputs)
        return tensorflow_cpu.depthwise_conv(inputs, self.kernel, stride=self.strides[0])


IMAGENET_MEAN = (0.485, 0.456, 0.406)  # red, green, blue of pixels in 0 .. 1
IMAGENET_STDDEV = (0.229, 0.224, 0.225)


def normalized(
    images: Tensor,
    sizes: Tensor,
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    stddev: tuple[float, float, float] = IMAGENET_STDDEV,
) -> Tensor:
    """Return float32 images from uint8 [B, H, W, 3]: (image / 255 - mean) / stddev, and 0 outside `sizes` [B, 2]."""
    values = (ops.cast(images, "float32") / 255.0 - np.array(mean, np.float32)) / np.array(stddev, np.float32)
    rows = ops.arange(images.shape[1])[None, :, None] < ops.cast(sizes[:, 0], "int32")[:, None, None]
    columns = ops.arange(images.shape[2])[None, None, :] < ops.cast(sizes[:, 1], "int32")[:, None, None]
    return ops.where(ops.logical_and(rows, columns)[..., None], values, 0.0)
