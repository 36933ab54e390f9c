"""A detector's network as an ONNX file, for runtimes that are faster at inference than the one it was trained in.

uint8 images in, class logits and box deltas out; normalisation is inside, batch statistics are folded into the
convolutions. `object_detection.host_suppression` reads the outputs.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import keras
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from efficientdet.checkpoints.checkpoint import Description
from model.activations import SiLU
from model.batch_norm import BatchNormalization
from model.bifpn import NearestResize, WeightedFusion
from model.dense_detector import DenseDetector
from model.efficientnet import IMAGENET_MEAN, IMAGENET_STDDEV
from object_detection.errors import InputError

OPSET = 18
DESCRIPTION_KEY = "efficientdet"
OUTPUT_NAMES = ("class_logits", "box_deltas", "best_logits")


def export_onnx(detector: DenseDetector, path: str | Path, *, description: Description) -> None:
    """Write one file, see `onnx_model`; what the classes are and how outputs are read travels in it as JSON."""
    model = onnx_model(detector)
    helper.set_model_props(model, {DESCRIPTION_KEY: json.dumps(vars(description))})
    onnx.save(model, str(path))


def onnx_model(detector: DenseDetector, *, for_onnxruntime: bool = False) -> onnx.ModelProto:
    """`images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32 -> `class_logits` [B, A, K], `box_deltas` [B, A, 4] and
    `best_logits` [B, A], the highest of each anchor, all float32.

    Of any B, with the weights of this moment. Raises InputError naming a layer that has no translation.

    for_onnxruntime: the same numbers by what costs ONNX Runtime least on a CPU, a tenth of its time less. `class_logits` is
    [B, A / n, n K] then, n anchors of a cell in a row, which is the same order of values: a Reshape at the end is a copy.
    """
    graph = _Graph(for_onnxruntime=for_onnxruntime)
    num_anchors, num_classes = len(detector.anchors), detector.network.output_shape[0][-1]
    cells, deltas = graph.network(detector.network, graph.normalised(detector))
    logits = graph.add("Reshape", [cells, np.array([0, num_anchors, num_classes])])
    graph.add("ReduceMax", [logits, np.array([2])], name="best_logits", keepdims=0)
    graph.rename(cells if for_onnxruntime else logits, "class_logits")
    graph.add("Reshape", [deltas, np.array([0, num_anchors, 4])], name="box_deltas")
    height, width = detector.config.image_size
    inputs = [helper.make_tensor_value_info("images", TensorProto.UINT8, ["B", height, width, 3]),
              helper.make_tensor_value_info("sizes", TensorProto.INT32, ["B", 2])]
    per_cell = detector.config.anchors.per_cell if for_onnxruntime else 1
    shapes = ((num_anchors // per_cell, per_cell * num_classes), (num_anchors, 4), (num_anchors,))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", *shape])
               for name, shape in zip(OUTPUT_NAMES, shapes, strict=True)]
    model = helper.make_model(
        helper.make_graph(graph.nodes(), "efficientdet", inputs, outputs, graph.initializers()),
        opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10, producer_name="efficientdet")
    onnx.checker.check_model(model)
    return model


class _Graph:
    """Nodes and constants of the file in the making; tensors are known by name, channels stand second in them."""

    def __init__(self, *, for_onnxruntime: bool):
        self.for_onnxruntime = for_onnxruntime
        self._nodes: list[tuple[str, list[str], str, dict]] = []
        self._constants: dict[str, np.ndarray] = {}
        self._convolutions: dict[str, tuple[str, str, str]] = {}  # output -> input, and the constants with kernel and bias
        self._names: dict[str, str] = {}  # for the file, where they differ

    def nodes(self) -> list[onnx.NodeProto]:
        """For the file: those that its outputs depend on."""
        needed, nodes = set(OUTPUT_NAMES), []
        for kind, inputs, output, attributes in reversed(self._nodes):
            output = self._names.get(output, output)
            if output in needed:
                inputs = [self._names.get(tensor, tensor) for tensor in inputs]
                needed.update(inputs)
                nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return nodes[::-1]

    def initializers(self) -> list[onnx.TensorProto]:
        """For the file: those that its nodes read."""
        used = {tensor for node in self.nodes() for tensor in node.input}
        return [numpy_helper.from_array(array, name) for name, array in self._constants.items() if name in used]

    def rename(self, tensor: str, name: str) -> None:
        """The name of a tensor in the file; a node Identity would copy it."""
        self._names[tensor] = name

    def add(self, kind: str, inputs: list, *, name: str | None = None, **attributes) -> str:
        """A node; arrays among its inputs become constants. Returns the name of its output."""
        output = name or f"{kind}_{len(self._nodes)}"
        names = [tensor if isinstance(tensor, str) else self._constant(tensor, f"{output}.{number}")
                 for number, tensor in enumerate(inputs)]
        self._nodes.append((kind, names, output, attributes))
        return output

    def _constant(self, array, name: str) -> str:
        self._constants[name] = np.asarray(array)
        return name

    def normalised(self, detector: DenseDetector) -> str:
        """As `DenseDetector.normalise`, which is what the tests hold it to."""
        height, width = detector.config.image_size
        mean, stddev = (np.float32(values).reshape(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STDDEV))
        pixels = self.add("Cast", [self.add("Transpose", ["images"], perm=[0, 3, 1, 2])], to=TensorProto.FLOAT)
        pixels = self.add("Sub", [pixels, 255.0 * mean])
        factor = 1.0 / (255.0 * stddev)
        for axis, (size, shape) in enumerate(((height, (1, 1, height, 1)), (width, (1, 1, 1, width)))):
            limit = self.add("Gather", ["sizes", np.array([axis])], axis=1)
            limit = self.add("Reshape", [limit, np.array([-1, 1, 1, 1])])
            inside = self.add("Cast", [self.add("Less", [np.arange(size, dtype=np.int32).reshape(shape), limit])],
                              to=TensorProto.FLOAT)
            pixels = self.add("Mul", [pixels, inside if axis else self.add("Mul", [inside, factor])])
        for _ in range(detector.config.normalisations - 1):
            pixels = self.add("Div", [self.add("Sub", [pixels, mean]), stddev])
        return pixels

    def network(self, network: keras.Model, pixels: str) -> list[str]:
        """Every layer in order; the names of the outputs."""
        names = {id(network.inputs[0]): pixels}
        # Keras has no public way from a shared layer to each place where it is used.
        for depth in sorted(network._nodes_by_depth, reverse=True):
            for node in network._nodes_by_depth[depth]:
                if node.is_input:
                    continue
                layer, inputs = node.operation, [names[id(tensor)] for tensor in node.input_tensors]
                names[id(node.outputs[0])] = _translation(layer)(self, layer, inputs, node)
        return [names[id(tensor)] for tensor in network.outputs]

    def convolution(self, source: str, kernel, bias, *, size, strides=(1, 1), groups: int = 1) -> str:
        """Padding "same" as TensorFlow pads; kernel [k, k, in / groups, out], `size` the height and width of the input."""
        kernel = _array(kernel).transpose(3, 2, 0, 1)
        bias = np.zeros(len(kernel), np.float32) if bias is None else _array(bias)
        output = self.add("Conv", [source, kernel, bias], group=groups, kernel_shape=kernel.shape[2:], strides=strides,
                          pads=_same_pads(size, kernel.shape[2:], strides))
        self._convolutions[output] = (source, f"{output}.1", f"{output}.2")
        return output

    def normalisation(self, source: str, layer: BatchNormalization) -> str:
        """Folded into the convolution before it: these are the statistics of inference, constants."""
        gamma, beta, mean, variance = (
            _array(value) for value in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance))
        factor = gamma / np.sqrt(variance + layer.epsilon)
        _, kernel, bias = self._convolutions[source]
        self._constants[kernel] = (self._constants[kernel] * factor[:, None, None, None]).astype(np.float32)
        self._constants[bias] = ((self._constants[bias] - mean) * factor + beta).astype(np.float32)
        return source

    def predictions(self, maps: list[str]) -> str:
        """A head's outputs of all levels, convolutions' [B, C, h, w] each, as rows of cells: [B, cells, C]."""
        sources, kernels, biases = zip(*(self._convolutions[tensor] for tensor in maps), strict=True)
        kernel, bias = self._constants[kernels[0]], self._constants[biases[0]]
        shared = kernel.shape[2:] == (1, 1) and all(np.array_equal(self._constants[name], kernel) for name in kernels)
        if not (self.for_onnxruntime and shared):
            return self._rows(maps, channels=len(kernel))
        # The cells as rows before the last convolution are a tenth of those after it, and need no copy then. Its bias is one
        # more row of the kernel: added by itself it would cost a pass over the outputs.
        rows = self._rows(sources, channels=kernel.shape[1])
        rows = self.add("Pad", [rows, np.array([0, 0, 0, 0, 0, 1]), np.float32(1)])
        return self.add("MatMul", [rows, np.concatenate([kernel[:, :, 0, 0].T, bias[None]])])

    def _rows(self, maps: Iterable[str], *, channels: int) -> str:
        transposed = [self.add("Transpose", [source], perm=[0, 2, 3, 1]) for source in maps]
        return self.add("Concat", [self.add("Reshape", [tensor, np.array([0, -1, channels])]) for tensor in transposed], axis=1)


def _array(weight) -> np.ndarray:
    return np.asarray(getattr(weight, "value", weight), np.float32)


def _same_pads(size, taps, strides) -> list[int]:
    totals = [max((-(-side // stride) - 1) * stride + tap - side, 0)
              for side, tap, stride in zip(size, taps, strides, strict=True)]
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def _conv(graph, layer, inputs, node) -> str:
    return graph.convolution(inputs[0], layer.kernel, layer.bias, size=node.input_tensors[0].shape[1:3], strides=layer.strides)


def _depthwise(graph, layer, inputs, node) -> str:
    return _grouped(graph, layer.kernel, inputs[0], node, bias=layer.bias, strides=layer.strides)


def _separable(graph, layer, inputs, node) -> str:
    spread = _grouped(graph, layer.depthwise_kernel, inputs[0], node, bias=None, strides=layer.strides)
    return graph.convolution(spread, layer.pointwise_kernel, layer.bias, size=node.outputs[0].shape[1:3])


def _grouped(graph, kernel, source, node, *, bias, strides) -> str:
    kernel = _array(kernel).transpose(0, 1, 3, 2)  # [k, k, C, 1] -> [k, k, 1, C]
    return graph.convolution(source, kernel, bias, size=node.input_tensors[0].shape[1:3], strides=strides,
                             groups=kernel.shape[-1])


_ACTIVATIONS = {"sigmoid": "Sigmoid", "relu": "Relu", "tanh": "Tanh", "elu": "Elu"}


def _activated(graph, source: str, activation: str) -> str:
    if activation in ("silu", "swish"):
        return graph.add("Mul", [source, graph.add("Sigmoid", [source])])
    if activation == "linear":
        return source
    if activation not in _ACTIVATIONS:
        raise InputError(f"activation {activation} has no translation to ONNX; those with one are silu, "
                         f"{', '.join(_ACTIVATIONS)}")
    return graph.add(_ACTIVATIONS[activation], [source])


def _conv_with_activation(graph, layer, inputs, node) -> str:
    """Those of squeeze and excitation have theirs inside."""
    return _activated(graph, _conv(graph, layer, inputs, node), layer.activation.__name__)


def _max_pool(graph, layer, inputs, node) -> str:
    return graph.add("MaxPool", inputs, kernel_shape=layer.pool_size, strides=layer.strides,
                     pads=_same_pads(node.input_tensors[0].shape[1:3], layer.pool_size, layer.strides))


def _fusion(graph, layer, inputs, node) -> str:
    weights = np.stack([_array(weight) for weight in layer.fusion_weights])
    weights = np.maximum(weights, 0) if layer.fusion_relu else weights
    shares = weights / (weights.sum() + np.float32(1e-4))
    return _chained(graph, "Add", [_scaled(graph, source, share, channels=node.outputs[0].shape[-1])
                                   for source, share in zip(inputs, shares, strict=True)])


def _scaled(graph, source: str, factor, *, channels: int) -> str:
    """For ONNX Runtime by a depthwise convolution: it leaves its layout of convolutions for a product, not for a sum."""
    if not graph.for_onnxruntime:
        return graph.add("Mul", [source, factor])
    return graph.add("Conv", [source, np.full((channels, 1, 1, 1), factor)], group=channels, kernel_shape=(1, 1))


def _chained(graph, kind: str, inputs: list[str]) -> str:
    result = inputs[0]
    for source in inputs[1:]:
        result = graph.add(kind, [result, source])
    return result


def _nearest_resize(graph, layer, inputs, node) -> str:
    source = inputs[0]
    for axis, target in zip((2, 3), layer.size, strict=True):
        before = node.input_tensors[0].shape[axis - 1]
        if target % before:
            source = graph.add("Gather", [source, np.array(layer.source_rows(before, target))], axis=axis)
    scales = [1.0, 1.0, *(float(target // before) if target % before == 0 else 1.0
                          for target, before in zip(layer.size, node.input_tensors[0].shape[1:3], strict=True))]
    if max(scales) == 1.0:
        return source
    return graph.add("Resize", [source, "", np.float32(scales)], mode="nearest", nearest_mode="floor",
                     coordinate_transformation_mode="asymmetric")


def _reshape(graph, layer, inputs, node) -> str:
    """Nothing yet: global pooling kept the axes of [B, 1, 1, C], and a head's rows are made where its levels are joined."""
    return inputs[0]


def _concatenate(graph, layer, inputs, node) -> str:
    return graph.predictions(inputs) if len(node.outputs[0].shape) == 3 else graph.add("Concat", inputs, axis=1)


_TRANSLATIONS: list[tuple[type, Callable]] = [
    (BatchNormalization, lambda graph, layer, inputs, node: graph.normalisation(inputs[0], layer)),
    (SiLU, lambda graph, layer, inputs, node: _activated(graph, inputs[0], "silu")),
    (WeightedFusion, _fusion),
    (NearestResize, _nearest_resize),
    (keras.layers.SeparableConv2D, _separable),
    (keras.layers.DepthwiseConv2D, _depthwise),
    (keras.layers.Conv2D, _conv_with_activation),
    (keras.layers.MaxPooling2D, _max_pool),
    (keras.layers.GlobalAveragePooling2D, lambda graph, layer, inputs, node: graph.add("GlobalAveragePool", inputs)),
    (keras.layers.Activation, lambda graph, layer, inputs, node: _activated(graph, inputs[0], layer.activation.__name__)),
    (keras.layers.Reshape, _reshape),
    (keras.layers.Multiply, lambda graph, layer, inputs, node: _chained(graph, "Mul", inputs)),
    (keras.layers.Add, lambda graph, layer, inputs, node: _chained(graph, "Add", inputs)),
    (keras.layers.Concatenate, _concatenate),
    (keras.layers.Identity, lambda graph, layer, inputs, node: inputs[0]),
    (keras.layers.Dropout, lambda graph, layer, inputs, node: inputs[0]),
]


def _translation(layer) -> Callable:
    for kind, translate in _TRANSLATIONS:
        if isinstance(layer, kind):
            return translate
    raise InputError(f"layer {layer.name} of type {type(layer).__name__} has no translation to ONNX")
