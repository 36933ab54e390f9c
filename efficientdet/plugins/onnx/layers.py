"""Translation of a Keras network to ONNX nodes, layer by layer."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import keras

from efficientdet.plugins.onnx import translations
from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.translations import activated, array, convolution, depthwise, normalization
from model.batch_norm import BatchNormalization
from model.bifpn import NearestResize, SymmetricMaxPooling2D, WeightedFusion
from model.fast_layers import DepthwiseConv2D, SiLU
from program_support.errors import InputError


def add_network(graph: OnnxGraph, network: keras.Model, inputs: Sequence[str]) -> list[str]:
    """Add every layer of a functional model in inference mode, with its current weights.

    inputs: a tensor for each input of the network. Return a tensor for each of `network.outputs`.

    Raises:
        InputError: for a layer without a translation (see `OnnxGraph`).
    """
    network = getattr(network, "_functional", None) or network  # a Sequential has one inside
    # Keras has no public interface for the nodes of a shared layer.
    nodes = [
        node
        for depth in sorted(network._nodes_by_depth, reverse=True)
        for node in network._nodes_by_depth[depth]
        if not node.is_input
    ]
    read = chain(network.outputs, *(node.input_tensors for node in nodes))
    readers = Counter(map(id, read))
    names: dict[int, str] = {}

    def keep(tensors, made) -> None:
        for tensor, name in zip(tensors, made, strict=True):
            names[id(tensor)] = name
            if readers[id(tensor)] > 1:
                graph.convolved.pop(name, None)  # a change for one reader would affect the others

    keep(network.inputs, inputs)
    for node in nodes:
        graph.layer = node.operation.name
        keep(node.outputs, _translated(graph, node, [names[id(tensor)] for tensor in node.input_tensors]))
    graph.layer = ""
    return [names[id(tensor)] for tensor in network.outputs]


def _translated(graph: OnnxGraph, node, inputs: list[str]) -> list[str]:
    """Add a layer at one of its nodes in the Keras graph; return its outputs."""
    layer = node.operation
    if hasattr(layer, "to_onnx"):
        inputs = [graph.keras(tensor) for tensor in inputs]
        for name, tensor in zip(inputs, node.input_tensors, strict=True):
            graph.note_shape(name, tensor.shape)
        made = layer.to_onnx(graph, inputs)
        return [made] if isinstance(made, str) else list(made)
    if hasattr(layer, "add_to_onnx"):  # a plugin's layer, which knows the layouts of the graph
        return layer.add_to_onnx(graph, inputs, node)
    if isinstance(layer, keras.Sequential) or hasattr(layer, "_nodes_by_depth"):
        return add_network(graph, layer, inputs)
    for kind, translate in _TRANSLATIONS:
        # A subclass with another `call` has no translation here.
        if isinstance(layer, kind) and type(layer).call is kind.call and translations.is_channels_last(layer):
            made = translate(graph, layer, inputs, node)
            return [made] if isinstance(made, str) else made
    raise InputError(
        f"layer {layer.name} of type {type(layer).__name__} has no translation to ONNX; define its method to_onnx"
    )


def _convolution(graph, layer, inputs, node) -> str:
    convolved = convolution(
        graph,
        inputs[0],
        layer,
        layer.kernel,
        layer.bias,
        size=node.input_tensors[0].shape[1:3],
        strides=layer.strides,
        dilation=layer.dilation_rate,
        groups=layer.groups,
    )
    return activated(graph, convolved, layer.activation)


def _transposed(graph, layer, inputs, node) -> str:
    if layer.padding != "valid" or layer.output_padding is not None:
        raise InputError(
            f"layer {layer.name} of type Conv2DTranspose has no translation to ONNX with padding {layer.padding}"
        )
    kernel = array(layer.kernel).transpose(3, 2, 0, 1)  # [rows, columns, out, in] -> [in, out, ...]
    bias = [] if layer.bias is None else [array(layer.bias)]
    made = graph.add_image(
        "ConvTranspose", [graph.image(inputs[0]), kernel, *bias], strides=layer.strides, dilations=layer.dilation_rate
    )
    return activated(graph, made, layer.activation)


def _depthwise(graph, layer, inputs, node) -> str:
    convolved = depthwise(graph, inputs[0], layer, layer.kernel, layer.bias, size=node.input_tensors[0].shape[1:3])
    return activated(graph, convolved, layer.activation)


def _separable(graph, layer, inputs, node) -> str:
    spread = depthwise(graph, inputs[0], layer, layer.depthwise_kernel, None, size=node.input_tensors[0].shape[1:3])
    convolved = convolution(graph, spread, layer, layer.pointwise_kernel, layer.bias, size=node.outputs[0].shape[1:3])
    return activated(graph, convolved, layer.activation)


def _batch_norm(graph, layer, inputs, node) -> str:
    rank = len(node.outputs[0].shape)
    if layer.axis % rank != rank - 1:
        raise InputError(
            f"layer {layer.name} of type BatchNormalization has no translation to ONNX over axis {layer.axis}"
        )
    return normalization(graph, inputs[0], layer, rank=rank)


_TRANSLATIONS: list[tuple[type[keras.Layer], Callable[..., str | list[str]]]] = [
    (BatchNormalization, _batch_norm),
    (keras.layers.BatchNormalization, _batch_norm),
    (SiLU, lambda graph, layer, inputs, node: activated(graph, inputs[0], "silu")),
    (WeightedFusion, translations.weighted_fusion),
    (NearestResize, translations.nearest_resize),
    (DepthwiseConv2D, _depthwise),
    (keras.layers.SeparableConv2D, _separable),
    (keras.layers.DepthwiseConv2D, _depthwise),
    (keras.layers.Conv2D, _convolution),
    (keras.layers.Conv2DTranspose, _transposed),
    (keras.layers.Dense, translations.dense),
    (SymmetricMaxPooling2D, translations.pooled("MaxPool", border=1)),
    (keras.layers.MaxPooling2D, translations.pooled("MaxPool")),
    (keras.layers.AveragePooling2D, translations.pooled("AveragePool")),
    (keras.layers.GlobalAveragePooling2D, translations.pooled_globally),
    (keras.layers.ZeroPadding2D, translations.padded),
    (keras.layers.Activation, lambda graph, layer, inputs, node: activated(graph, inputs[0], layer.activation)),
    (keras.layers.ReLU, translations.relu),
    (keras.layers.Softmax, translations.softmax),
    (keras.layers.Reshape, translations.reshaped),
    (keras.layers.Flatten, translations.reshaped),
    (keras.layers.Permute, translations.permuted),
    (keras.layers.Multiply, translations.combined("Mul")),
    (keras.layers.Add, translations.combined("Add")),
    (keras.layers.Concatenate, translations.concatenated),
    (keras.layers.Identity, lambda graph, layer, inputs, node: inputs[0]),
    (keras.layers.Dropout, lambda graph, layer, inputs, node: inputs[0]),
]
