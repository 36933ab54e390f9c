"""Convolutions of an ONNX file with folded batch norm, and the prediction layers of heads."""

from collections.abc import Sequence

import numpy as np

from efficientdet.onnx_translation.graph import Convolved, OnnxGraph
from program_support.errors import InputError


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
