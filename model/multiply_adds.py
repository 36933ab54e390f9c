"""The arithmetic of a network: multiplications with an addition in its convolutions and matrix products, by its layers.

Everything else (activations, normalization, resampling, what reads the outputs) is left out: it takes time, but no arithmetic
that published counts hold.
"""

import math

import keras

from model.tensorflow_cpu import fixed_shapes

_COUNTED = (keras.layers.Conv2D, keras.layers.Conv2DTranspose, keras.layers.DepthwiseConv2D, keras.layers.SeparableConv2D,
            keras.layers.Dense)
_TRAINED = 3  # passes: forward, the gradient of the inputs, and that of the kernel, each as much work as the others


def multiply_adds(network: keras.Model) -> int:
    """Of one image forward. A layer counts once for each place where the network uses it, as heads are used at every level."""
    return sum(count for _, count in _counted_layers(network))


def training_multiply_adds(network: keras.Model) -> int:
    """Of one image in a training step: three times the forward pass, but frozen layers, which stand first, once."""
    return sum(count * (_TRAINED if layer.trainable_variables else 1) for layer, count in _counted_layers(network))


def _counted_layers(network: keras.Model) -> list[tuple[keras.layers.Layer, int]]:
    """Each use of a layer that is counted, in a network of functional layers that is shown one image of known shape: what it
    works on in stages, such as an image's regions, then has a known number too."""
    found = []

    def watched(layer):
        def call(*inputs, **settings):
            if isinstance(layer, keras.Model):
                return layer._run_through_graph(keras.tree.flatten(inputs), watched)
            outputs = layer(*inputs, **settings)
            if isinstance(layer, _COUNTED):
                places = inputs[0] if isinstance(layer, keras.layers.Conv2DTranspose) else outputs
                kernels = sum(math.prod(weight.shape) for weight in layer.weights if weight.name.endswith("kernel"))
                found.append((layer, math.prod(places.shape[:-1]) * kernels))
            return outputs

        return call

    class Watched(keras.Operation):
        """The network's layers one after the other; Keras shows shapes to an operation without computing anything."""

        def call(self, *images):
            return network._run_through_graph(list(images), watched)

    with fixed_shapes():
        Watched().compute_output_spec(*(keras.KerasTensor((1, *image.shape[1:]), image.dtype) for image in network.inputs))
    return found
