"""Operators and tensors of a LiteRT file."""

from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

_TYPES = {number: name.lower() for name, number in vars(schema.TensorType).items() if not name.startswith("_")}


class LitertTensor(NamedTuple):
    """A tensor of a graph."""

    shape: tuple[int, ...]
    dtype: str
    is_quantized: bool
    is_dynamic: bool
    constant: np.ndarray | None  # uint8 bytes of a constant; None for results of operators


class LitertOperator(NamedTuple):
    """An operator with its tensors; `options` is the schema's table of a built-in operator."""

    name: str
    inputs: tuple[LitertTensor, ...]
    outputs: tuple[LitertTensor, ...]
    options: Any


class LitertGraph(NamedTuple):
    """Operators in their order of execution."""

    operators: tuple[LitertOperator, ...]


def litert_graph(model: bytes) -> LitertGraph:
    """Return the graph of a file with one.

    Raises:
        ValueError: for a file with control flow.
    """
    tree = flatbuffer_utils.convert_bytearray_to_object(bytearray(model))
    if len(tree.subgraphs) != 1:
        raise ValueError(f"has {len(tree.subgraphs)} graphs; expected one, without control flow")
    [graph] = tree.subgraphs
    tensors = [_tensor(tree, entry) for entry in graph.tensors]
    operators = tuple(
        LitertOperator(
            _operator_name(tree, entry.opcodeIndex),
            tuple(tensors[number] for number in entry.inputs if number >= 0),
            tuple(tensors[number] for number in entry.outputs),
            entry.builtinOptions,
        )
        for entry in graph.operators
    )
    return LitertGraph(operators)


def _operator_name(tree: schema.ModelT, number: int) -> str:
    custom = tree.operatorCodes[number].customCode
    return custom.decode() if custom else flatbuffer_utils.opcode_to_name(tree, number)


def _tensor(tree: schema.ModelT, entry: schema.TensorT) -> LitertTensor:
    quantization, data = entry.quantization, tree.buffers[entry.buffer].data
    scales = None if quantization is None else quantization.scale
    return LitertTensor(
        () if entry.shape is None else tuple(int(side) for side in entry.shape),
        _TYPES[entry.type],
        scales is not None and len(scales) > 0,
        entry.shapeSignature is not None and -1 in entry.shapeSignature,
        None if data is None or not len(data) else np.asarray(data, np.uint8),
    )
