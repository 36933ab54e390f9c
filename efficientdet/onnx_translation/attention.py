"""Translation of the layers of transformers to ONNX: attention, layer normalization, dense layers by an equation.

The functions have the interface of `onnx_translations`.
"""

import inspect

import numpy as np

from efficientdet.onnx_translation.convolutions import array
from efficientdet.onnx_translation.translations import activated
from program_support.errors import InputError


def einsum_dense(graph, layer, inputs, node) -> str:
    """Add keras.layers.EinsumDense."""
    return _projected(graph, layer, inputs[0])


def layer_normalization(graph, layer, inputs, node) -> str:
    """Add keras.layers.LayerNormalization over the last axis."""
    shape = node.outputs[0].shape
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if layer.rms_scaling or [axis % len(shape) for axis in axes] != [len(shape) - 1]:
        raise InputError(
            f"layer {layer.name} of type LayerNormalization has no translation to ONNX with rms_scaling or over other "
            "axes than the last"
        )
    scale = np.ones(shape[-1], np.float32) if layer.gamma is None else array(layer.gamma)
    offset = np.zeros(shape[-1], np.float32) if layer.beta is None else array(layer.beta)
    return graph.add(
        "LayerNormalization", [graph.keras(inputs[0]), scale, offset], axis=-1, epsilon=float(layer.epsilon)
    )


def multi_head_attention(graph, layer, inputs, node) -> str:
    """Add keras.layers.MultiHeadAttention over one axis, without masks: softmax(Q K / sqrt(d)) V for each head."""
    names = {id(tensor): name for tensor, name in zip(node.input_tensors, inputs, strict=True)}
    given = inspect.signature(layer.call).bind(*node.arguments.args, **node.arguments.kwargs).arguments
    tensors = {role: given.pop(role) for role in ("query", "value", "key") if given.get(role) is not None}
    given.pop("training", None)
    if any(value is not None and value is not False for value in given.values()) or len(layer._attention_axes) > 1:
        options = ", ".join(given) or "several axes"
        raise InputError(f"layer {layer.name} of type MultiHeadAttention has no translation to ONNX with {options}")
    query, value, key = (
        graph.keras(names[id(tensors.get(role, tensors["value"]))]) for role in ("query", "value", "key")
    )
    scaled = graph.add("Mul", [_projected(graph, layer._query_dense, query), np.float32(layer._inverse_sqrt_key_dim)])
    keys = _projected(graph, layer._key_dense, key)
    scores = graph.add("Einsum", [keys, scaled], equation=layer._dot_product_equation)
    values = _projected(graph, layer._value_dense, value)
    weights = graph.add("Softmax", [scores], axis=-1)
    read = graph.add("Einsum", [weights, values], equation=layer._combine_equation)
    if layer._use_gate:
        read = graph.add("Mul", [read, _projected(graph, layer._gate_dense, query)])
    return _projected(graph, layer._output_dense, read)


def _projected(graph, layer, source: str) -> str:
    """Add the product of a tensor with the kernel of an EinsumDense layer, its bias and activation."""
    product = graph.add("Einsum", [graph.keras(source), array(layer.kernel)], equation=layer.equation)
    biased = product if layer.bias is None else graph.add("Add", [product, array(layer.bias)])
    return activated(graph, biased, layer.activation)
