"""Quantization of an exported network's convolutions to int8."""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import onnx


def quantized(
    model: onnx.ModelProto, inputs: Iterable[Mapping[str, np.ndarray]], *, narrow: bool, exact: Sequence[str] = ()
) -> onnx.ModelProto:
    """Quantize a model of `onnx_model`: uint8 inputs and int8 kernels of convolutions, as nodes that runtimes fuse.

    It is faster on CPUs with VNNI, with a lower AP. The range of an input is determined on `inputs` (see
    `CalibrationImages`); a kernel has a scale for each output channel. Everything else, including outputs of
    convolutions and the nodes in `exact`, stays float32. narrow: 7-bit kernels, for x86 CPUs on which the sums would
    saturate (`sums_of_bytes_saturate`).
    """
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    values = iter(inputs)

    class Reader(CalibrationDataReader):
        def get_next(self):
            return next(values, None)

    with tempfile.TemporaryDirectory() as folder, _without_advice():
        float_file, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        onnx.save(model, str(float_file))
        quantize_static(
            float_file,
            after,
            Reader(),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Conv"],
            per_channel=True,
            reduce_range=narrow,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=list(exact),
            extra_options={"OpTypesToExcludeOutputQuantization": ["Conv"]},
        )  # the following nodes are fused in float32
        quantized_model = onnx.load(str(after))
    _sort_nodes(quantized_model.graph)
    return quantized_model


def _sort_nodes(graph: onnx.GraphProto) -> None:
    """Place each node after those whose outputs it reads, also in its bodies, which OpenVINO requires.

    The quantizer sorts by the inputs outside the bodies only.
    """
    nodes = [*graph.node]
    made_by = {output: number for number, node in enumerate(nodes) for output in node.output}
    read = {
        number: {made_by[tensor] for tensor in inputs_with_bodies(node) if tensor in made_by}
        for number, node in enumerate(nodes)
    }
    del graph.node[:]
    graph.node.extend(nodes[number] for number in TopologicalSorter(read).static_order())


def inputs_with_bodies(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the inputs of a node and of the nodes in its bodies, such as a Loop's."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from inputs_with_bodies(inner)


def last_convolutions(model: onnx.ModelProto) -> list[str]:
    """Return the names of the convolutions between which and the outputs there is no other convolution."""
    made_by = {output: node for node in model.graph.node for output in node.output}
    names, seen, waiting = [], set(), [output.name for output in model.graph.output]
    while waiting:
        node = made_by.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        if node.op_type == "Conv":
            names.append(node.name)
        else:
            waiting += inputs_with_bodies(node)
    return names


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Silence the quantizer's advice to optimize the float model first, which is not needed for folded models."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
