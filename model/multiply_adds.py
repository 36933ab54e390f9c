"""Multiply-adds (MACs) of a network's convolutions and matrix products.

Activations, normalization, resampling and post-processing are left out, as in published counts.
"""

import math
from collections.abc import Callable
from typing import Any

import keras

from model.tensorflow_cpu import fixed_shapes
from object_detection.structures import Tensor

_COUNTED = (
    keras.layers.Conv2D,
    keras.layers.Conv2DTranspose,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv2D,
    keras.layers.Dense,
)
_TRAINING_PASSES = 3  # passes: forward, gradient of the inputs, gradient of the kernel, each with the same work


def multiply_adds(network: keras.Model) -> int:
    """Return the multiply-adds of one image in a forward pass; layers of a head count once per level."""
    return sum(count for _, count in _counted_layers(network))


def training_multiply_adds(network: keras.Model) -> int:
    """Return the multiply-adds of a training step per image: 3 times the forward pass, once for frozen layers."""
    return sum(
        count * (_TRAINING_PASSES if layer.trainable_variables else 1) for layer, count in _counted_layers(network)
    )


def _counted_layers(network: keras.Model) -> list[tuple[keras.layers.Layer, int]]:
    """Return each use of a counted layer, in a network of functional layers called with one image of known shape.

    With a known image, layers that operate on regions have a known shape too.
    """
    layers = []

    def watched(layer: keras.Layer) -> Callable[..., Any]:
        def call(*inputs: Tensor, **settings: Any) -> Any:
            if isinstance(layer, keras.Model):
                return layer._run_through_graph(keras.tree.flatten(inputs), watched)
            outputs = layer(*inputs, **settings)
            if isinstance(layer, _COUNTED):
                places = inputs[0] if isinstance(layer, keras.layers.Conv2DTranspose) else outputs
                kernels = sum(math.prod(weight.shape) for weight in layer.weights if weight.name.endswith("kernel"))
                layers.append((layer, math.prod(places.shape[:-1]) * kernels))
            return outputs

        return call

    class Watched(keras.Operation):
        """The network as one operation; Keras infers its shapes without computing anything."""

        def call(self, *images: Tensor) -> Any:
            return network._run_through_graph(list(images), watched)

    with fixed_shapes():
        Watched().compute_output_spec(
            *(keras.KerasTensor((1, *image.shape[1:]), image.dtype) for image in network.inputs)
        )
    return layers
