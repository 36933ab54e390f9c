"""An ONNX graph in the making: nodes, constants, and how the values of a tensor lie in memory.

Keras has images as [B, h, w, C]; ONNX's convolutions want [B, C, h, w]. A tensor here is a name, and is either as Keras has
it or an image, channels second. Whoever reads a tensor says which of the two it wants, and gets a Transpose only where it is
the other. What no output depends on is left out of the file.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_TO_IMAGE, _TO_KERAS = [0, 3, 1, 2], [0, 2, 3, 1]


class Convolved(NamedTuple):
    """Where the values of a convolution's output come from."""

    source: str  # an image
    kernel: str  # constant [out, in / groups, k, k]
    bias: str  # constant [out]
    is_product: bool  # of each cell with one matrix: 1 x 1, all channels together, no strides


class _Node(NamedTuple):
    kind: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict


class OnnxGraph:
    """What translations of layers write into.

    A layer of a family's own brings its translation as a method `to_onnx(self, graph, inputs)`. `inputs` are names of tensors
    as Keras has them (any rank, an image [B, h, w, C]); it returns the name of its output, or a list of names where it has
    several, laid out as Keras has them too. `shape_of` tells the static shape of an input. A layer that computes on images
    with channels second reads `image(tensor)` and returns `as_image(output)`, which spares the Transposes.
    """

    def __init__(self, *, for_onnxruntime: bool = False, prefix: str = ""):
        """for_onnxruntime: prefer what costs ONNX Runtime least on a CPU over what is plainest; prefix: of all names."""
        self.for_onnxruntime, self._prefix = for_onnxruntime, prefix
        self._nodes: list[_Node] = []
        self._constants: dict[str, np.ndarray] = {}
        self._images: set[str] = set()
        self._transposed: dict[str, str] = {}  # tensor -> the same values in the other layout
        self._shapes: dict[str, tuple[int | None, ...]] = {}
        self._names: dict[str, str] = {}  # in the file, where they differ
        self.convolved: dict[str, Convolved] = {}  # by output; without those that several layers read
        self.reshaped_images: dict[str, str] = {}  # tensor -> the image that it holds the values of, in Keras's order
        self.layer = ""  # where the nodes to come belong, a part of their names
        self.cells: dict[str, tuple[str, int]] = {}  # predictions [B, A, K] -> the same as [B, cells, channels], and channels

    def inner(self, name: str) -> "OnnxGraph":
        """An empty one for the body of a node such as Loop; it may read tensors of this one."""
        return OnnxGraph(for_onnxruntime=self.for_onnxruntime, prefix=f"{self._prefix}{name}.")

    def add(self, kind: str, inputs: Sequence, *, name: str | None = None, **attributes) -> str:
        """A node with one output, whose name is returned. Arrays among the inputs become constants; "": left out."""
        [output] = self.add_several(kind, inputs, 1, name=name, **attributes)
        return output

    def add_several(self, kind: str, inputs: Sequence, count: int, *, name: str | None = None, **attributes) -> list[str]:
        """A node with `count` outputs, such as TopK; their names."""
        first = name or f"{self._prefix}{self.layer and f'{self.layer}/'}{kind}_{len(self._nodes)}"
        names = [tensor if isinstance(tensor, str) else self._constant(tensor, f"{first}.{number}")
                 for number, tensor in enumerate(inputs)]
        outputs = [first, *(f"{first}:{number}" for number in range(1, count))]
        self._nodes.append(_Node(kind, names, outputs, attributes))
        return outputs

    def cast(self, tensor: str, dtype: str) -> str:
        """`add` of a Cast to a NumPy type such as "float32"."""
        return self.add("Cast", [tensor], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def loop(self, body: "OnnxGraph", start: str, *, times: int, state: str, next_state: str,
             scanned: dict[str, str]) -> list[str]:
        """`add_several` of a Loop; see `object_detection.onnx_nodes.Graph`."""
        value, prefix = helper.make_tensor_value_info, body._prefix
        number, condition = f"{prefix}number", f"{prefix}condition"
        go_on = body.add("Identity", [condition])
        outputs = [value(go_on, TensorProto.BOOL, []), value(next_state, TensorProto.FLOAT, None), *(
            value(tensor, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None) for tensor, dtype in scanned.items())]
        nodes = body.nodes([output.name for output in outputs])
        content = helper.make_graph(
            nodes, prefix, [value(number, TensorProto.INT64, []), value(condition, TensorProto.BOOL, []),
                            value(state, TensorProto.FLOAT, None)], outputs, body.initializers(nodes))
        return self.add_several("Loop", [np.array(times), np.array(True), start], 1 + len(scanned), body=content)[1:]

    def add_image(self, kind: str, inputs: Sequence, **attributes) -> str:
        """`add` of a node whose output is an image, channels second."""
        return self.as_image(self.add(kind, inputs, **attributes))

    def as_image(self, tensor: str) -> str:
        """Say of a tensor that it is an image with channels second; its name."""
        self._images.add(tensor)
        return tensor

    def is_image(self, tensor: str) -> bool:
        """Whether channels stand second in it."""
        return tensor in self._images

    def image(self, tensor: str) -> str:
        """The values of a tensor of rank 4 as [B, C, h, w]."""
        if tensor in self._images:
            return tensor
        if tensor not in self._transposed:
            self._transposed[tensor] = self.add_image("Transpose", [tensor], perm=_TO_IMAGE)
        return self._transposed[tensor]

    def keras(self, tensor: str) -> str:
        """The values of a tensor as Keras has them."""
        if tensor not in self._images:
            return tensor
        if tensor not in self._transposed:
            self._transposed[tensor] = self.add("Transpose", [tensor], perm=_TO_KERAS)
        return self._transposed[tensor]

    def shape_of(self, tensor: str) -> tuple[int | None, ...]:
        """Static shape of an input of `to_onnx`; None for what is not known, such as B."""
        return self._shapes[tensor]

    def note_shape(self, tensor: str, shape: Sequence[int | None]) -> None:
        """What `shape_of` is to answer."""
        self._shapes[tensor] = tuple(shape)

    def constant(self, name: str) -> np.ndarray:
        """The values of a constant."""
        return self._constants[name]

    def change_constant(self, name: str, values: np.ndarray) -> None:
        """Other values of the same shape."""
        self._constants[name] = values

    def _constant(self, values, name: str) -> str:
        self._constants[name] = np.asarray(values)
        return name

    def call_output(self, tensor: str, name: str) -> None:
        """The name in the file of a tensor that is an output; a copy where it has a name already, as an input has."""
        known = tensor in self._names or not any(tensor in node.outputs for node in self._nodes)
        self._names[self.add("Identity", [tensor]) if known else tensor] = name

    def nodes(self, outputs: Sequence[str]) -> list[onnx.NodeProto]:
        """Those that the outputs (names in the file) depend on, in order."""
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
        """The constants that the nodes read. Of equal ones, such as kernels that several levels share, one stays, and the
        nodes are changed to read that."""
        used = {tensor for node in nodes for tensor in node.input}
        first: dict[tuple, str] = {}
        same = {name: first.setdefault((array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest()), name)
                for name, array in self._constants.items() if name in used}
        for node in nodes:
            node.input[:] = [same.get(tensor, tensor) for tensor in node.input]
        return [numpy_helper.from_array(self._constants[name], name) for name in first.values()]
