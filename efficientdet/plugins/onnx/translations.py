"""Translation of layers to ONNX: convolutions with folded batch norm, activations, sums, shapes, resizing.

The functions of layers take the graph, the layer, the names of its inputs and its node in the Keras graph (with the
shapes), and return the name of the output.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain

import keras
import numpy as np

from efficientdet.plugins.onnx.graph import Convolved, OnnxGraph
from model.batch_norm import BatchNormalization
from model.bifpn import NearestResize, SymmetricMaxPooling2D, WeightedFusion
from model.fast_layers import DepthwiseConv2D, SiLU
from program_support.errors import InputError

_ACTIVATIONS = {
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "tanh": "Tanh",
    "elu": "Elu",
    "softplus": "Softplus",
    "exponential": "Exp",
    "hard_silu": "HardSwish",
}
_IMAGE_AXES = {0: 0, 1: 2, 2: 3, 3: 1}  # axis of an image in Keras -> axis with channels second


def activated(graph: OnnxGraph, source: str, activation) -> str:
    """Add an activation, given as function or name.

    Raises:
        InputError: for one without a translation.
    """
    name = activation if isinstance(activation, str) else getattr(activation, "__name__", type(activation).__name__)
    if name == "linear":
        return source
    if name == "softmax":
        return graph.add("Softmax", [graph.keras(source)], axis=-1)
    if name in ("silu", "swish"):
        made = graph.add("Mul", [source, graph.add("Sigmoid", [source])])
    elif name == "relu6":
        made = graph.add("Clip", [source, np.float32(0), np.float32(6)])
    elif name in _ACTIVATIONS:
        made = graph.add(_ACTIVATIONS[name], [source])
    else:
        raise InputError(
            f"activation {name} has no translation to ONNX; expected one of linear, silu, softmax, relu6, "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return graph.as_image(made) if graph.is_image(source) else made


def relu(graph, layer, inputs, node) -> str:
    """Add keras.layers.ReLU with its upper limit."""
    if layer.threshold or layer.negative_slope:
        raise InputError(f"layer {layer.name} of type ReLU has no translation to ONNX with its threshold or slope")
    if layer.max_value is None:
        return activated(graph, inputs[0], "relu")
    made = graph.add("Clip", [*inputs, np.float32(0), np.float32(layer.max_value)])
    return graph.as_image(made) if graph.is_image(inputs[0]) else made


def combined(kind: str):
    """Return the translation of Add or Multiply; inputs of lower rank get axes after the batch axis."""

    def translate(graph, layer, inputs, node) -> str:
        ranks = [len(tensor.shape) for tensor in node.input_tensors]
        rank = max(ranks)
        inputs = [
            tensor
            if rank_of_tensor == rank
            else graph.add("Unsqueeze", [graph.keras(tensor), np.arange(1, 1 + rank - rank_of_tensor)])
            for tensor, rank_of_tensor in zip(inputs, ranks, strict=True)
        ]
        return chained(graph, kind, inputs)

    return translate


def chained(graph: OnnxGraph, kind: str, inputs: list[str]) -> str:
    """Add the sum or product of tensors of equal rank; it is an image if one of them is."""
    are_images = any(graph.is_image(tensor) for tensor in inputs)
    inputs = [graph.image(tensor) if are_images else tensor for tensor in inputs]
    result = inputs[0]
    for source in inputs[1:]:
        result = graph.add(kind, [result, source])
    return graph.as_image(result) if are_images else result


def dense(graph, layer, inputs, node) -> str:
    """Add keras.layers.Dense, for any rank."""
    product = graph.add("MatMul", [graph.keras(inputs[0]), array(layer.kernel)])
    biased = product if layer.bias is None else graph.add("Add", [product, array(layer.bias)])
    return activated(graph, biased, layer.activation)


def pooled(kind: str, *, border: int | None = None):
    """Return the translation of a pooling layer; averages do not include the padding. border: pixels on each side."""

    def translate(graph, layer, inputs, node) -> str:
        return graph.add_image(
            kind,
            [graph.image(inputs[0])],
            kernel_shape=layer.pool_size,
            strides=layer.strides,
            pads=4 * [border]
            if border
            else pads(layer, node.input_tensors[0].shape[1:3], layer.pool_size, layer.strides),
        )

    return translate


def pooled_globally(graph, layer, inputs, node) -> str:
    """Add the mean of each channel: [B, C], or [B, 1, 1, C] with keepdims."""
    means = graph.add_image("GlobalAveragePool", [graph.image(inputs[0])])
    if layer.keepdims:
        return means
    flat = graph.add("Flatten", [means], axis=1)
    graph.reshaped_images[flat] = means
    return flat


def padded(graph, layer, inputs, node) -> str:
    """Add keras.layers.ZeroPadding2D."""
    (top, bottom), (left, right) = layer.padding
    return graph.add_image(
        "Pad", [graph.image(inputs[0]), np.array([0, 0, top, left, 0, 0, bottom, right]), np.float32(0)]
    )


def reshaped(graph, layer, inputs, node) -> str:
    """Add Reshape or Flatten. Reshaping a pooled image [B, C] to [B, 1, 1, C] returns the image itself."""
    target = node.outputs[0].shape[1:]
    image = graph.reshaped_images.get(inputs[0])
    if image is not None and len(node.input_tensors[0].shape) == 2 and target == (1, 1, node.input_tensors[0].shape[1]):
        return image
    made = graph.add(
        "Reshape", [graph.keras(inputs[0]), np.array([0, *(-1 if side is None else side for side in target)])]
    )
    if graph.is_image(inputs[0]):
        graph.reshaped_images[made] = inputs[0]
    return made


def permuted(graph, layer, inputs, node) -> str:
    """Add keras.layers.Permute."""
    return graph.add("Transpose", [graph.keras(inputs[0])], perm=[0, *layer.dims])


def concatenated(graph, layer, inputs, node) -> str:
    """Add Concatenate; for the levels of a head, reshaped from convolutions, also note `graph.cells`."""
    rank = len(node.outputs[0].shape)
    axis = layer.axis % rank
    if (rank, axis) == (3, 1) and all(tensor in graph.reshaped_images for tensor in inputs):
        images = [graph.reshaped_images[tensor] for tensor in inputs]
        if (cells := predictions(graph, images)) is not None:
            _, anchors, values = node.outputs[0].shape
            made = graph.add("Reshape", [cells, np.array([0, anchors, values])])
            graph.cells[made] = cells, len(graph.constant(graph.convolved[images[0]].bias))
            return made
    if any(graph.is_image(tensor) for tensor in inputs):
        return graph.add_image("Concat", [graph.image(tensor) for tensor in inputs], axis=_IMAGE_AXES[axis])
    return graph.add("Concat", inputs, axis=axis)


def weighted_fusion(graph, layer, inputs, node) -> str:
    """Add `WeightedFusion` with its current normalized weights."""
    weights = np.stack([array(weight) for weight in layer.fusion_weights])
    weights = np.maximum(weights, 0) if layer.fusion_relu else weights
    shares = weights / (weights.sum() + np.float32(1e-4))
    return chained(
        graph,
        "Add",
        [
            _scaled(graph, graph.image(source), share, channels=node.outputs[0].shape[-1])
            for source, share in zip(inputs, shares, strict=True)
        ],
    )


def _scaled(graph: OnnxGraph, source: str, factor, *, channels: int) -> str:
    """Add a product with a factor; for ONNX Runtime as a depthwise convolution, which keeps its internal layout."""
    if not graph.for_onnxruntime:
        return graph.add_image("Mul", [source, factor])
    return graph.add_image("Conv", [source, np.full((channels, 1, 1, 1), factor)], group=channels, kernel_shape=(1, 1))


def nearest_resize(graph, layer, inputs, node) -> str:
    """Add `NearestResize`: integer factors by Resize, others by Gather."""
    source, source_size = graph.image(inputs[0]), node.input_tensors[0].shape[1:3]
    for axis, target, side in zip((2, 3), layer.size, source_size, strict=True):
        if target % side:
            source = graph.add_image("Gather", [source, np.array(layer.source_rows(side, target))], axis=axis)
    return _repeated(
        graph,
        source,
        [1 if target % side else target // side for target, side in zip(layer.size, source_size, strict=True)],
    )


def _repeated(graph: OnnxGraph, image: str, times) -> str:
    """Repeat each row and column of an image."""
    if max(times) == 1:
        return image
    return graph.add_image(
        "Resize",
        [image, "", np.array([1, 1, *times], np.float32)],
        mode="nearest",
        nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )


def is_channels_last(layer: keras.Layer) -> bool:
    """Return whether a layer of images reads [B, h, w, C]; True for all other layers."""
    return getattr(layer, "data_format", "channels_last") in (None, "channels_last")


def array(weight) -> np.ndarray:
    """Return a Keras variable or array as float32."""
    return np.asarray(getattr(weight, "value", weight), np.float32)


def pads(layer, size: Sequence[int | None], taps: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return ONNX's `pads` (top, left, bottom, right) of a convolution or pooling over an image of `size` (h, w).

    Padding "same" is TensorFlow's, with the odd pixel last.

    Raises:
        InputError: it needs an unknown size.
    """
    if layer.padding == "valid":
        return [0, 0, 0, 0]
    sides = [side for side in size if side is not None]
    if len(sides) < len(size):
        raise InputError(
            f"layer {layer.name} of type {type(layer).__name__} pads an image of unknown size, which has no "
            "translation to ONNX"
        )
    totals = [
        max((-(-side // stride) - 1) * stride + tap - side, 0)
        for side, tap, stride in zip(sides, taps, strides, strict=True)
    ]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def convolution(
    graph: OnnxGraph, source: str, layer, kernel, bias, *, size, strides=(1, 1), dilation=(1, 1), groups: int = 1
) -> str:
    """Add a convolution of kernel [k, k, in / groups, out] over an image of `size` (h, w); return an image."""
    kernel = array(kernel).transpose(3, 2, 0, 1)
    bias = np.zeros(len(kernel), np.float32) if bias is None else array(bias)
    reach = [(tap - 1) * rate + 1 for tap, rate in zip(kernel.shape[2:], dilation, strict=True)]
    dilated = {"dilations": dilation} if max(dilation) > 1 else {}
    source = graph.image(source)
    output = graph.add_image(
        "Conv",
        [source, kernel, bias],
        group=groups,
        kernel_shape=kernel.shape[2:],
        strides=strides,
        pads=pads(layer, size, reach, strides),
        **dilated,
    )
    is_product = kernel.shape[2:] == (1, 1) and groups == 1 and tuple(strides) == (1, 1)
    graph.convolved[output] = Convolved(source, f"{output}.1", f"{output}.2", is_product)
    return output


def depthwise(graph: OnnxGraph, source: str, layer, kernel, bias, *, size) -> str:
    """Add a depthwise convolution of kernel [k, k, C, m], with m outputs per channel; return an image."""
    kernel = array(kernel)
    height, width, channels, several = kernel.shape
    return convolution(
        graph,
        source,
        layer,
        kernel.reshape(height, width, 1, channels * several),
        bias,
        size=size,
        strides=layer.strides,
        dilation=layer.dilation_rate,
        groups=channels,
    )


def normalization(graph: OnnxGraph, source: str, layer, *, rank: int) -> str:
    """Add a batch norm at inference: folded into the preceding convolution if possible, else Mul and Add."""
    mean, variance = array(layer.moving_mean), array(layer.moving_variance)
    gamma = 1.0 if layer.gamma is None else array(layer.gamma)
    beta = 0.0 if layer.beta is None else array(layer.beta)
    factor = gamma / np.sqrt(variance + layer.epsilon)
    if source in graph.convolved:
        _, kernel, bias, _ = graph.convolved[source]
        graph.change_constant(kernel, (graph.constant(kernel) * factor[:, None, None, None]).astype(np.float32))
        graph.change_constant(bias, ((graph.constant(bias) - mean) * factor + beta).astype(np.float32))
        return source
    shift = beta - mean * factor
    if rank == 4:
        factor, shift = factor[:, None, None], shift[:, None, None]
        scaled = graph.add_image("Mul", [graph.image(source), factor.astype(np.float32)])
        return graph.add_image("Add", [scaled, shift.astype(np.float32)])
    return graph.add("Add", [graph.add("Mul", [source, factor.astype(np.float32)]), shift.astype(np.float32)])


def predictions(graph: OnnxGraph, maps: Sequence[str]) -> str | None:
    """Add the concatenation of a head's outputs [B, C, h, w] of all levels to [B, cells, C].

    Return None if they are not outputs of convolutions or differ in C.
    """
    if not all(tensor in graph.convolved for tensor in maps):
        return None
    sources, kernels, biases, are_products = zip(*(graph.convolved[tensor] for tensor in maps), strict=True)
    kernel, bias = graph.constant(kernels[0]), graph.constant(biases[0])
    if any(len(graph.constant(name)) != len(kernel) for name in kernels):
        return None
    shared = all(are_products) and all(
        np.array_equal(graph.constant(one), kernel) and np.array_equal(graph.constant(other), bias)
        for one, other in zip(kernels, biases, strict=True)
    )
    if not (graph.for_onnxruntime and shared):
        return _rows(graph, maps, channels=len(kernel))
    # The inputs of the last convolution have a tenth of the size of its outputs, so that they are reshaped instead. The
    # bias is a row of the matrix: a separate Add would need a pass over the outputs.
    rows = _rows(graph, sources, channels=kernel.shape[1])
    rows = graph.add("Pad", [rows, np.array([0, 0, 0, 0, 0, 1]), np.float32(1)])
    return graph.add("MatMul", [rows, np.concatenate([kernel[:, :, 0, 0].T, bias[None]])])


def _rows(graph: OnnxGraph, maps: Sequence[str], *, channels: int) -> str:
    rows = [graph.add("Reshape", [graph.keras(image), np.array([0, -1, channels])]) for image in maps]
    return graph.add("Concat", rows, axis=1)


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
        if isinstance(layer, kind) and type(layer).call is kind.call and is_channels_last(layer):
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
    (WeightedFusion, weighted_fusion),
    (NearestResize, nearest_resize),
    (DepthwiseConv2D, _depthwise),
    (keras.layers.SeparableConv2D, _separable),
    (keras.layers.DepthwiseConv2D, _depthwise),
    (keras.layers.Conv2D, _convolution),
    (keras.layers.Conv2DTranspose, _transposed),
    (keras.layers.Dense, dense),
    (SymmetricMaxPooling2D, pooled("MaxPool", border=1)),
    (keras.layers.MaxPooling2D, pooled("MaxPool")),
    (keras.layers.AveragePooling2D, pooled("AveragePool")),
    (keras.layers.GlobalAveragePooling2D, pooled_globally),
    (keras.layers.ZeroPadding2D, padded),
    (keras.layers.Activation, lambda graph, layer, inputs, node: activated(graph, inputs[0], layer.activation)),
    (keras.layers.ReLU, relu),
    (keras.layers.Reshape, reshaped),
    (keras.layers.Flatten, reshaped),
    (keras.layers.Permute, permuted),
    (keras.layers.Multiply, combined("Mul")),
    (keras.layers.Add, combined("Add")),
    (keras.layers.Concatenate, concatenated),
    (keras.layers.Identity, lambda graph, layer, inputs, node: inputs[0]),
    (keras.layers.Dropout, lambda graph, layer, inputs, node: inputs[0]),
]
