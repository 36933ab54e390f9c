"""Builder of ONNX graphs: nodes, constants and memory layouts of tensors.

Keras uses images [B, h, w, C]; ONNX's convolutions use [B, C, h, w]. A tensor is a name; it has either the layout of
Keras or is an image with channels second. A reader requests one of the two layouts, and a Transpose is added only if
the tensor has the other. Nodes on which no output depends are left out of the file.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from object_detection.onnx_nodes import Input, LoopState

_TO_IMAGE, _TO_KERAS = [0, 3, 1, 2], [0, 2, 3, 1]


class Convolved(NamedTuple):
    """The inputs of a convolution."""

    source: str  # an image
    kernel: str  # constant [out, in / groups, k, k]
    bias: str  # constant [out]
    is_product: bool  # a matrix product for each cell: kernel 1 x 1, one group, no strides


class _Node(NamedTuple):
    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any]


class OnnxGraph:
    """A graph to which translations of layers add nodes.

    A custom layer of a family defines its translation as a method `to_onnx(self, graph, inputs)`. `inputs` are names of
    tensors in the layout of Keras (any rank; images [B, h, w, C]). It returns the name of its output, or a list of
    names, in the same layout. `shape_of` returns the static shape of an input. A layer that computes on images with
    channels second reads `image(tensor)` and returns `as_image(output)`, which avoids Transposes.
    """

    def __init__(self, *, for_onnxruntime: bool = False, prefix: str = ""):
        """Initialize an empty graph.

        for_onnxruntime: prefer nodes that are fast in ONNX Runtime on a CPU to the simplest ones; prefix: prefix of all
        names.
        """
        self.for_onnxruntime, self._prefix = for_onnxruntime, prefix
        self._nodes: list[_Node] = []
        self._constants: dict[str, np.ndarray] = {}
        self._images: set[str] = set()
        self._transposed: dict[str, str] = {}  # tensor -> the same values in the other layout
        self._shapes: dict[str, tuple[int | None, ...]] = {}
        self._names: dict[str, str] = {}  # tensor -> its name in the file, if it differs
        self.convolved: dict[str, Convolved] = {}  # key: output; tensors that several layers read are left out
        self.reshaped_images: dict[str, str] = {}  # tensor -> the image with the same values in the order of Keras
        self.layer = ""  # current layer, a part of the names of nodes
        # Predictions [B, A, K] -> the same values as [B, cells, channels], and channels
        self.cells: dict[str, tuple[str, int]] = {}

    def inner(self, name: str) -> "OnnxGraph":
        """Return an empty graph for the body of a node such as Loop; it may read tensors of this graph."""
        return OnnxGraph(for_onnxruntime=self.for_onnxruntime, prefix=f"{self._prefix}{name}.")

    def add(self, kind: str, inputs: Sequence[Input], *, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return its name. Array inputs become constants; "" is an omitted input."""
        [output] = self.add_several(kind, inputs, 1, name=name, **attributes)
        return output

    def add_several(
        self, kind: str, inputs: Sequence[Input], count: int, *, name: str | None = None, **attributes: Any
    ) -> list[str]:
        """Add a node with `count` outputs, such as TopK, and return their names."""
        first = name or f"{self._prefix}{self.layer and f'{self.layer}/'}{kind}_{len(self._nodes)}"
        names = [
            tensor if isinstance(tensor, str) else self._constant(tensor, f"{first}.{number}")
            for number, tensor in enumerate(inputs)
        ]
        outputs = [first, *(f"{first}:{number}" for number in range(1, count))]
        self._nodes.append(_Node(kind, names, outputs, attributes))
        return outputs

    def cast(self, tensor: Input, dtype: str) -> str:
        """Add a Cast to a NumPy type such as "float32"."""
        return self.add("Cast", [tensor], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def loop(self, body: "OnnxGraph", *, most: int, states: Sequence[LoopState], condition: str) -> list[str]:
        """Run `body` at most `most` times, at least once, and return the states after the last run.

        Args:
            body: made by `inner`; reads the states by their names.
            most: maximum number of runs.
            states: tensors that a run changes.
            condition: the body's tensor, bool [], that is False after the last run.
        """
        value, prefix = helper.make_tensor_value_info, body._prefix
        kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(state.dtype)) for state in states]
        nodes = body.nodes([condition, *(state.next for state in states)])
        content = helper.make_graph(
            nodes,
            prefix,
            [
                value(f"{prefix}number", TensorProto.INT64, []),
                value(f"{prefix}condition", TensorProto.BOOL, []),
                *(value(state.name, kind, None) for state, kind in zip(states, kinds, strict=True)),
            ],
            [
                value(condition, TensorProto.BOOL, []),
                *(value(state.next, kind, None) for state, kind in zip(states, kinds, strict=True)),
            ],
            body.initializers(nodes),
        )
        inputs: list[Input] = [np.array(most), np.array(True), *(state.start for state in states)]
        return self.add_several("Loop", inputs, len(states), body=content)

    def choose(self, condition: str, tensors: Sequence[str], other: "OnnxGraph", others: Sequence[str]) -> list[str]:
        """Return `tensors` of this graph where `condition`, bool [], is True, else `others`.

        `other`, made by `inner`, computes `others`, and runs only if the condition is False.
        """
        these = self.inner(f"{other._prefix}not")
        branches = [(these, [these.add("Identity", [tensor]) for tensor in tensors]), (other, others)]
        contents = []
        for body, outputs in branches:
            nodes = body.nodes(outputs)
            types = [onnx.ValueInfoProto(name=name) for name in outputs]
            contents.append(helper.make_graph(nodes, body._prefix, [], types, body.initializers(nodes)))
        return self.add_several("If", [condition], len(tensors), then_branch=contents[0], else_branch=contents[1])

    def add_image(self, kind: str, inputs: Sequence[Input], **attributes: Any) -> str:
        """Add a node whose output is an image with channels second."""
        return self.as_image(self.add(kind, inputs, **attributes))

    def as_image(self, tensor: str) -> str:
        """Mark a tensor as an image with channels second and return its name."""
        self._images.add(tensor)
        return tensor

    def is_image(self, tensor: str) -> bool:
        """Return whether a tensor is an image with channels second."""
        return tensor in self._images

    def image(self, tensor: str) -> str:
        """Return a tensor of rank 4 as [B, C, h, w]."""
        if tensor in self._images:
            return tensor
        if tensor not in self._transposed:
            self._transposed[tensor] = self.add_image("Transpose", [tensor], perm=_TO_IMAGE)
        return self._transposed[tensor]

    def keras(self, tensor: str) -> str:
        """Return a tensor in the layout of Keras."""
        if tensor not in self._images:
            return tensor
        if tensor not in self._transposed:
            self._transposed[tensor] = self.add("Transpose", [tensor], perm=_TO_KERAS)
        return self._transposed[tensor]

    def shape_of(self, tensor: str) -> tuple[int | None, ...]:
        """Return the static shape of an input of `to_onnx`; None for unknown dimensions such as B."""
        return self._shapes[tensor]

    def note_shape(self, tensor: str, shape: Sequence[int | None]) -> None:
        """Set the static shape of an input of `to_onnx`; None for unknown dimensions."""
        self._shapes[tensor] = tuple(shape)

    def constant(self, name: str) -> np.ndarray:
        """Return the values of a constant."""
        return self._constants[name]

    def change_constant(self, name: str, values: np.ndarray) -> None:
        """Replace the values of a constant by others of the same shape."""
        self._constants[name] = values

    def _constant(self, values: np.ndarray | np.generic, name: str) -> str:
        self._constants[name] = np.asarray(values)
        return name

    def call_output(self, tensor: str, name: str) -> None:
        """Set the name of an output in the file; a tensor that already has a name, such as an input, is copied."""
        known = tensor in self._names or not any(tensor in node.outputs for node in self._nodes)
        self._names[self.add("Identity", [tensor]) if known else tensor] = name

    def nodes(self, outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """Return the nodes on which the outputs (names in the file) depend, in order."""
        needed, nodes = set(outputs), []
        for kind, inputs, made, attributes in reversed(self._nodes):
            made = [self._names.get(tensor, tensor) for tensor in made]
            if needed & set(made):
                inputs = [self._names.get(tensor, tensor) for tensor in inputs]
                needed.update(inputs)
                for body in (value for value in attributes.values() if isinstance(value, onnx.GraphProto)):
                    needed.update(tensor for node in body.node for tensor in node.input)
                nodes.append(helper.make_node(kind, inputs, made, name=made[0], **attributes))
        return nodes[::-1]

    def initializers(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.TensorProto]:
        """Return the constants that the nodes read, with duplicates merged (kernels that several levels share).

        The inputs of the nodes are changed accordingly.
        """
        used = {tensor for node in nodes for tensor in node.input}
        first: dict[tuple, str] = {}
        same = {
            name: first.setdefault((array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()), name)
            for name, array in self._constants.items()
            if name in used
        }
        for node in nodes:
            node.input[:] = [same.get(tensor, tensor) for tensor in node.input]
        return [numpy_helper.from_array(self._constants[name], name) for name in first.values()]
