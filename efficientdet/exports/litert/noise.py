"""Quantization error of a full-integer LiteRT file by layer."""

from collections.abc import Iterable

import numpy as np

from efficientdet.exports.litert.graph import CONVOLUTIONS, LitertGraph, LitertTensor, litert_graph
from efficientdet.exports.litert.integer import PIXEL_MEAN, PIXEL_SCALE
from efficientdet.exports.onnx.quantization_noise import Input, Layers, ratios


def litert_signal_to_noise(
    exact: bytes, in_8_bits: bytes, inputs: Iterable[Input]
) -> tuple[dict[str, float], list[float]]:
    """Return what `signal_to_noise` returns, for the float32 and the integer file of one network.

    Both are of `integer.py`, which converts the same function twice, so their convolutions are in the same order.
    """
    graphs = litert_graph(exact), litert_graph(in_8_bits)
    layers = [_convolutions(graph) for graph in graphs]
    shapes = [[tensor.shape for tensor in tensors] for tensors in layers]
    if shapes[0] != shapes[1]:
        raise RuntimeError("the float32 and the int8 network have different convolutions; no layers can be compared")
    expected, quantized = (_run(model, tensors) for model, tensors in zip((exact, in_8_bits), layers, strict=True))
    last = np.isin([tensor.number for tensor in layers[1]], _last(graphs[1]))
    names = [
        tensor.name.split(";")[-1] for tensor in layers[0]
    ]  # the last of a fused operation's names is the convolution's
    return ratios(expected, quantized, inputs, names=names, last=last)


def _convolutions(graph: LitertGraph) -> list[LitertTensor]:
    return [operator.outputs[0] for operator in graph.operators if operator.name in CONVOLUTIONS]


def _last(graph: LitertGraph) -> list[int]:
    """Return the outputs of the convolutions between which and the outputs there is no other convolution."""
    waiting, producers = set(graph.outputs), []
    for operator in reversed(graph.operators):  # they are sorted: users come later
        made = [tensor.number for tensor in operator.outputs if tensor.number in waiting]
        if made and operator.name in CONVOLUTIONS:
            producers += made
        elif made:
            waiting |= {tensor.number for tensor in operator.inputs}
    return producers


def _run(model: bytes, tensors: list[LitertTensor]) -> Layers:
    """Return a function from `images` [1, H, W, 3] uint8 to tensors in float32."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=model,
        experimental_preserve_all_tensors=True,
        # A delegate keeps its tensors to itself.
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    [image] = interpreter.get_input_details()
    details = {detail["index"]: detail["quantization"] for detail in interpreter.get_tensor_details()}

    def run(inputs: Input) -> list[np.ndarray]:
        images = inputs["images"]
        values = images if image["dtype"] == np.uint8 else (images.astype(np.float32) - PIXEL_MEAN) / PIXEL_SCALE
        interpreter.set_tensor(image["index"], values.astype(image["dtype"]))
        interpreter.invoke()
        return [_dequantized(interpreter.get_tensor(one.number), *details[one.number]) for one in tensors]

    return run


def _dequantized(values: np.ndarray, scale: float, zero_point: int) -> np.ndarray:
    values = values.astype(np.float32)
    return (values - zero_point) * scale if scale else values
