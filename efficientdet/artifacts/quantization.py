"""An exported network whose convolutions compute in 8 bits: faster on CPUs with instructions for that, at a cost in AP."""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx


def quantized(
    model: onnx.ModelProto, inputs: Iterable[Mapping[str, np.ndarray]], *, narrow: bool, exact: Sequence[str] = ()
) -> onnx.ModelProto:
    """A file of `onnx_model` with uint8 inputs and int8 kernels of its convolutions, as nodes that runtimes fuse.

    An input's range is what it takes over `inputs` (see `CalibrationImages`); a kernel has a scale for each output channel.
    All else, and what a convolution adds up to, stays float32, and the nodes named by `exact` do. narrow: kernels of 7 bits,
    for x86 CPUs on which the sums would overflow (`sums_of_bytes_saturate`).
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder, _without_advice():
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, str(before))
        quantize_static(
            before, after, _reader(iter(inputs)), quant_format=QuantFormat.QDQ, op_types_to_quantize=["Conv"],
            per_channel=True, reduce_range=narrow, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
            nodes_to_exclude=list(exact),
            extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"]})  # what follows is fused as float32
        return onnx.load(str(after))


def last_convolutions(model: onnx.ModelProto) -> list[str]:
    """Names of the convolutions whose values reach the outputs through no other: those that say what is found, and where."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    found, seen, waiting = [], set(), [output.name for output in model.graph.output]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op_type == "Conv":
            found.append(node.name)
        else:
            waiting += node.input
    return found


def _reader(inputs: Iterator[Mapping[str, np.ndarray]]):
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def get_next(self):
            return next(inputs, None)

    return Reader()


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """A block without warnings in the log: the quantizer advises to optimize the float model first, and ours is folded."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
