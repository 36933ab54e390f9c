"""Folding of fixed batch statistics into the preceding convolutions, which saves memory passes."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import keras
from keras import ops

from model.batch_norm import BatchNormalization, scale_and_shift
from model.fast_layers import DepthwiseConv2D
from object_detection.structures import Tensor

_CONVOLUTIONS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, keras.layers.SeparableConv2D, DepthwiseConv2D)


def folded(
    network: keras.Model,
    *,
    training: bool = False,
    replaced: Mapping[type, Callable[[Any], Callable[[Tensor], Tensor]]] = MappingProxyType({}),
) -> Callable[[Tensor | list[Tensor]], Any]:
    """Return a function equivalent to `network(inputs, training=training)`, up to rounding.

    It uses the network's current weights: kernels are scaled at each call, which costs one pass over the weights, while
    the layers cost one pass over activations each. In training only frozen batch norm is folded. Under a 16-bit policy
    nothing is folded: the scales are float32 there, and the compilers of the accelerators that use such policies fold
    by themselves. replaced: functions by type of layer that return what runs in place of a layer, for runtimes that
    lack its operation.
    """

    def run(inputs: Tensor | list[Tensor]) -> Any:
        # At each call, because layers may have been frozen in the meantime
        before_norms = _convolutions_before_norms(network, training=training)

        def operation(layer: keras.Layer) -> Callable[..., Any]:
            if isinstance(layer, BatchNormalization):
                return partial(_normalized, layer, training=training)
            if id(layer) in before_norms:
                return partial(_Convolution, layer)
            if type(layer) in replaced:
                return replaced[type(layer)](layer)
            return partial(layer, training=True) if training and layer._call_has_training_arg else layer

        # Keras has no public way to run a graph with other operations in place of its layers.
        return network._run_through_graph(inputs, operation_fn=operation)

    return run


def has_frozen_norms(network: keras.Model) -> bool:
    """Return whether training has batch norm layers to fold."""
    return any(isinstance(layer, BatchNormalization) and not layer.trainable for layer in network.layers)


class _Convolution:
    """A convolution's inputs [B, H, W, C] until its batch norm is known: a head uses a different one at each level."""

    def __init__(self, layer: keras.layers.Layer, inputs: Tensor):
        self.layer, self.inputs = layer, inputs

    def scaled(self, scale: Tensor, shift: Tensor) -> Tensor:
        """Return the convolution's outputs times `scale` plus `shift`, [C] each."""
        layer = self.layer
        if layer.use_bias:
            shift = shift + layer.bias * scale
        with keras.name_scope(layer.name):  # exported files show it
            return ops.add(self._convolved(scale), ops.reshape(shift, (1, 1, 1, -1)))  # TensorFlow fuses it as a bias

    def _convolved(self, scale: Tensor) -> Tensor:
        """Return the convolution with its kernel times `scale`."""
        layer = self.layer
        options = {"strides": layer.strides, "padding": layer.padding, "dilation_rate": layer.dilation_rate}
        if isinstance(layer, keras.layers.SeparableConv2D):
            return ops.separable_conv(self.inputs, layer.depthwise_kernel, layer.pointwise_kernel * scale, **options)
        if isinstance(layer, keras.layers.DepthwiseConv2D):
            scale = ops.reshape(scale, layer.kernel.shape[2:])  # kernel [k, k, C, m], with m outputs per channel
            return ops.depthwise_conv(self.inputs, layer.kernel * scale, **options)
        return layer.convolution_op(self.inputs, layer.kernel * scale)


def _normalized(layer: BatchNormalization, inputs: Tensor | _Convolution, *, training: bool, **_mask: Any) -> Tensor:
    if isinstance(inputs, _Convolution):
        return inputs.scaled(*scale_and_shift(layer))
    return layer(inputs, training=training)


def _convolutions_before_norms(network: keras.Model, *, training: bool) -> set[int]:
    """Return ids of the layers whose outputs are used by batch norms only; in training by frozen ones only."""
    producers = {id(tensor): node.operation for node in _nodes(network) for tensor in node.outputs}
    elsewhere = {id(tensor) for tensor in network.outputs}
    used_by_norms: set[int] = set()
    for node in _nodes(network):
        is_norm = isinstance(node.operation, BatchNormalization) and not (training and node.operation.trainable)
        (used_by_norms if is_norm else elsewhere).update(map(id, node.input_tensors))
    others = {id(producers[tensor]) for tensor in elsewhere if tensor in producers}
    layers = [producers[tensor] for tensor in used_by_norms if tensor in producers]
    return {id(layer) for layer in layers if _foldable(layer)} - others


def _foldable(layer: keras.Layer) -> bool:
    """Return whether a layer is exactly a float32 convolution; a subclass may compute something else."""
    return (
        any(isinstance(layer, kind) and type(layer).call is kind.call for kind in _CONVOLUTIONS)
        and layer.activation is keras.activations.linear
        and layer.compute_dtype == "float32"
    )


def _nodes(network: keras.Model) -> list[Any]:
    return [node for nodes in network._nodes_by_depth.values() for node in nodes if not node.is_input]
