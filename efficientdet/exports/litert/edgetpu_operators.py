"""Check of a LiteRT file against the documented operators of the Edge TPU compiler.

    python -m efficientdet.exports.litert.edgetpu_operators FILE.tflite

The compiler (edgetpu_compiler 16.0) maps the operators from the input to the first one that it does not support; what
follows runs on the CPU. The limits are those of https://coral.ai/docs/edgetpu/models-intro/#supported-operations. The
compiler has more of them that are not documented, such as for large tensors, so only its own log is a proof.
"""

import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from efficientdet.exports.litert.graph import LitertGraph, LitertOperator, LitertTensor, litert_graph

_INTEGERS = ("int8", "uint8")
_DIMENSIONS = 3  # innermost ones that may have a size above 1
_MOST_SOFTMAX_INPUTS = 16_000


def _no_activation(operator: LitertOperator) -> str | None:
    return "has a fused activation" if operator.options.fusedActivationFunction else None


def _concatenation(operator: LitertOperator) -> str | None:
    constants = [tensor.constant for tensor in operator.inputs if tensor.constant is not None]
    if constants and (len(operator.inputs) != 2 or any(constant.any() for constant in constants)):
        return "has a constant input that is not one of zeros beside a single other input"
    return _no_activation(operator)


def _dilation(operator: LitertOperator) -> str | None:
    options = operator.options
    return "has different dilations in x and y" if options.dilationHFactor != options.dilationWFactor else None


def _resize(operator: LitertOperator) -> str | None:
    # In compiler logs these options, which need a later version of the operator, are "not supported".
    return (
        "has half-pixel centers or aligned corners"
        if (operator.options.halfPixelCenters or operator.options.alignCorners)
        else None
    )


def _softmax(operator: LitertOperator) -> str | None:
    shape = operator.inputs[0].shape
    if sum(side > 1 for side in shape) > 1 or max(shape) > _MOST_SOFTMAX_INPUTS:
        return f"has an input of more than one dimension or of more than {_MOST_SOFTMAX_INPUTS:,} elements"
    return None


def _fully_connected(operator: LitertOperator) -> str | None:
    several = sum(side > 1 for side in operator.outputs[0].shape) > 1
    return "has an output of more than one dimension" if several else None


def _any(operator: LitertOperator) -> str | None:
    return None


_SUPPORTED: dict[str, Callable[[LitertOperator], str | None]] = {
    **dict.fromkeys(
        ("ADD", "EXPAND_DIMS", "L2_NORMALIZATION", "LOGISTIC", "MAXIMUM", "MEAN", "MINIMUM", "MUL", "PACK", "PAD"), _any
    ),
    **dict.fromkeys(
        ("PRELU", "QUANTIZE", "REDUCE_MAX", "REDUCE_MIN", "RELU", "RELU6", "RELU_N1_TO_1", "RESHAPE", "RSQRT"), _any
    ),
    **dict.fromkeys(("SLICE", "SPACE_TO_DEPTH", "SPLIT", "SQUARED_DIFFERENCE", "SQUEEZE", "STRIDED_SLICE"), _any),
    **dict.fromkeys(("SUB", "SUM", "TANH", "TRANSPOSE", "TRANSPOSE_CONV"), _any),
    "AVERAGE_POOL_2D": _no_activation,
    "CONCATENATION": _concatenation,
    "CONV_2D": _dilation,
    "DEPTHWISE_CONV_2D": _dilation,
    "FULLY_CONNECTED": _fully_connected,
    "MAX_POOL_2D": _no_activation,
    "RESIZE_BILINEAR": _resize,
    "RESIZE_NEAREST_NEIGHBOR": _resize,
    "SOFTMAX": _softmax,
}
_ON_CPU = ("DEQUANTIZE", "TFLite_Detection_PostProcess")  # expected after the segment of the Edge TPU


@dataclass(frozen=True)
class EdgeTpuReport:
    """Operators of a file that the Edge TPU executes, and those left to the CPU."""

    mapped: Counter[str]  # operators before the first obstacle
    on_cpu: Counter[str]  # operators that follow it
    obstacles: dict[str, int]  # operators that the compiler does not map, and how often

    @property
    def is_one_segment(self) -> bool:
        """Return whether all but the detection operator and its inputs are mapped."""
        return bool(self.mapped) and all(name in _ON_CPU for name in self.on_cpu)

    def lines(self) -> list[str]:
        """Return the report as text."""
        verdict = "one Edge TPU segment expected" if self.is_one_segment else "not one Edge TPU segment"
        return [
            f"{verdict}: {self.mapped.total()} operators before the first unsupported one, {self.on_cpu.total()} after",
            *(f"  {count:4} {name}" for name, count in sorted(self.mapped.items())),
            *(f"  {count:4} on the CPU: {reason}" for reason, count in self.obstacles.items()),
        ]


def check_edgetpu(graph: LitertGraph) -> EdgeTpuReport:
    """Check the operators of a graph in their order of execution."""
    reasons = [_obstacle(operator) for operator in graph.operators]
    first = next((number for number, reason in enumerate(reasons) if reason), len(reasons))
    names = [operator.name for operator in graph.operators]
    obstacles = Counter(f"{name} {reason}" for name, reason in zip(names, reasons, strict=True) if reason)
    return EdgeTpuReport(Counter(names[:first]), Counter(names[first:]), dict(obstacles))


def _obstacle(operator: LitertOperator) -> str | None:
    """Return why the compiler does not map an operator; None if nothing documented prevents it."""
    limit = _SUPPORTED.get(operator.name)
    if limit is None:
        return "is not a supported operator"
    for tensor in (*operator.inputs, *operator.outputs):
        if reason := _tensor_obstacle(tensor):
            return reason
    return limit(operator)


def _tensor_obstacle(tensor: LitertTensor) -> str | None:
    if tensor.is_dynamic:
        return "has a tensor of unknown size"
    if tensor.constant is not None and tensor.dtype in ("int32", "int64"):
        return None  # biases, shapes and paddings
    if tensor.dtype not in _INTEGERS or not tensor.is_quantized:
        return f"has a tensor of type {tensor.dtype}{'' if tensor.is_quantized else ', not quantized'}"
    if any(side > 1 for side in tensor.shape[:-_DIMENSIONS]) and tensor.constant is None:
        return f"has a tensor of shape {list(tensor.shape)}; the three innermost dimensions may be above 1"
    return None


def _main(arguments: list[str]) -> int:
    """Print the report of a file; return 0 if one segment is expected, 1 if not, and 2 for a user's mistake."""
    if len(arguments) != 1:
        print("usage: python -m efficientdet.exports.litert.edgetpu_operators FILE.tflite", file=sys.stderr)
        return 2
    try:
        report = check_edgetpu(litert_graph(Path(arguments[0]).read_bytes()))
    except (OSError, ValueError, struct.error) as error:
        print(f"{arguments[0]}: cannot be read ({getattr(error, 'strerror', None) or error})", file=sys.stderr)
        return 2
    print("\n".join(report.lines()))
    return 0 if report.is_one_segment else 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
