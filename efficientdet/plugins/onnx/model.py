"""Translation of a detector to ONNX, whose runtimes are faster at inference than Keras.

The model computes the network's outputs from uint8 images. It includes normalization; batch norm is folded into
convolutions. `object_detection.suppression.host_suppression` post-processes the outputs of a dense detector.
"""

import contextlib
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import keras
import numpy as np
import onnx
from keras import ops
from onnx import TensorProto, helper

from dataset.input.host_resize import ResizeSettings
from efficientdet.exports.exported_file import IMAGE
from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.resizing import add_resize
from efficientdet.plugins.onnx.translations import add_network
from model.detection_model import DetectionModel
from object_detection.onnx_nodes import Output, clipped
from object_detection.structures import DETECTIONS
from program_support.errors import InputError

OPSET = 18
INPUTS = ("images", "sizes")
_LARGEST_DIFFERENCE = 1e-4  # share of the largest value


def onnx_model(
    detector: DetectionModel,
    *,
    for_onnxruntime: bool = False,
    detects: bool = False,
) -> onnx.ModelProto:
    """Return a model with the inputs `images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32, for any B.

    The outputs of a dense detector are `class_logits` [B, A, K], `box_deltas` [B, A, 4] and `best_logits` [B, A], the
    highest of each anchor, all float32. The outputs of any other network have the layout of Keras and the names
    `detector.output_names`, else `network.output_names` with the suffixes `.1`, `.2`, ... for a layer with several
    outputs.

    detects: the outputs of a dense detector are `DETECTIONS` instead: boxes [B, D, 4] yxyx in pixels of the input,
    scores [B, D] and classes [B, D] int32, best first, padded with scores of 0. Two-stage networks always return
    detections.

    for_onnxruntime: use the nodes that are fastest in ONNX Runtime on a CPU, which saves 10% of the time.
    `class_logits` is then [B, A / n, n K], with the n anchors of a cell in a row: the order of values is the same, and
    a Reshape would copy them.

    Raises:
        InputError: for a layer without a translation (see `OnnxGraph`).
    """
    graph = OnnxGraph(for_onnxruntime=for_onnxruntime)
    inputs = [_value("images", "uint8", (*detector.image_size, 3)), _value("sizes", "int32", (2,))]
    return _assembled(graph, detector, _added_outputs(graph, detector, detects=detects), inputs=inputs)


def image_model(detector: DetectionModel, resize: ResizeSettings, *, masks: bool = True) -> onnx.ModelProto:
    """Return a model that detects in one image of any size, `image` [h, w, 3 or 4] uint8; alpha is ignored.

    The outputs are `DETECTIONS` with B = 1, boxes in pixels of the image and clipped to it, and with `masks` the masks
    of a detector that has them.

    Raises:
        InputError: for a layer without a translation (see `OnnxGraph`).
    """
    graph = OnnxGraph()
    scales = add_resize(graph, rule=resize, image=IMAGE, images=INPUTS[0], sizes=INPUTS[1])
    outputs = _added_outputs(graph, detector, detects=True)
    boxes = clipped(graph, outputs["boxes"].tensor, INPUTS[1])
    outputs["boxes"] = outputs["boxes"]._replace(
        tensor=graph.add("Mul", [boxes, graph.add("Concat", [scales, scales], axis=0)])
    )
    image = helper.make_tensor_value_info(IMAGE, TensorProto.UINT8, ["h", "w", "c"])
    kept = {name: output for name, output in outputs.items() if masks or name in DETECTIONS}
    return _assembled(graph, detector, kept, inputs=[image])


def _added_outputs(graph: OnnxGraph, detector: DetectionModel, *, detects: bool) -> dict[str, Output]:
    """Add normalization, network and, with `detects`, post-processing; return the outputs of `onnx_model`."""
    pixels = _add_normalization(graph, detector, images=INPUTS[0], sizes=INPUTS[1])
    tensors = add_network(graph, detector.network, [pixels, INPUTS[1]][: len(detector.network.inputs)])
    outputs = detector.postprocessing.onnx_detections(graph, tensors, INPUTS[1]) if detects else None
    return outputs or detector.postprocessing.onnx_outputs(graph, tensors) or _own_outputs(graph, detector, tensors)


def _assembled(
    graph: OnnxGraph,
    detector: DetectionModel,
    outputs: Mapping[str, Output],
    *,
    inputs: Sequence[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """Return the checked model of a graph with these inputs and outputs."""
    for name, output in outputs.items():
        graph.call_output(output.tensor, name)
    nodes = graph.nodes(list(outputs))
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            detector.network.name,
            inputs,
            [_value(name, output.dtype, output.shape) for name, output in outputs.items()],
            graph.initializers(nodes),
        ),
        opset_imports=opsets,
        # The lowest for these operators: a runtime refuses a later one than its own, whatever the operators are
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="efficientdet",
    )
    onnx.checker.check_model(model)
    return model


def _own_outputs(graph: OnnxGraph, detector: DetectionModel, tensors: Sequence[str]) -> dict[str, Output]:
    """Return the outputs of a network in the layout of Keras."""
    network = detector.network
    return {
        name: Output(graph.keras(tensor), output.dtype, output.shape[1:])
        for name, tensor, output in zip(
            detector.output_names or _output_names(network), tensors, network.outputs, strict=True
        )
    }


def _output_names(network: keras.Model) -> list[str]:
    """Return a unique name for each output; see `onnx_model`."""
    used: set[str] = set(INPUTS)
    names = []
    for name in network.output_names:
        number, unique = 0, name
        while unique in used:
            number += 1
            unique = f"{name}.{number}"
        used.add(unique)
        names.append(unique)
    return names


def _value(name: str, dtype: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    """Return an input or output with this shape after the batch axis; 16-bit floats of Keras become float32."""
    is_float = "float" in dtype
    kind = TensorProto.FLOAT if is_float else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(
        name, kind, ["B", *(f"{name}.{axis}" if side is None else side for axis, side in enumerate(shape, start=1))]
    )


def _add_normalization(graph: OnnxGraph, detector: DetectionModel, *, images: str, sizes: str) -> str:
    """Add `detector.normalize` of `images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32; return a float32 image.

    It must be a scale and shift of each channel within `sizes` and a constant color outside, else InputError is raised.
    """
    height, width = detector.image_size
    probe = np.random.default_rng(0).integers(0, 256, (1, height, width, 3), np.uint8)
    size = np.array([[height // 2, width // 2]], np.int32)
    inside = np.zeros((1, height, width, 1), bool)
    inside[:, : height // 2, : width // 2] = True
    expected = _normalized(detector, probe * inside, size)  # images are black outside
    shift, white = (_normalized(detector, np.full_like(probe, value), size)[0, 0, 0] for value in (0, 255))
    scale, outside = (white - shift) / 255, expected[0, -1, -1]
    difference = np.abs(np.where(inside, probe * scale + shift, outside) - expected)
    if difference.max() > _LARGEST_DIFFERENCE * np.abs(expected).max():
        raise InputError(
            f"{type(detector).__name__}.normalize has no translation to ONNX: expected a scale and shift of each "
            "channel with a constant color outside of the image"
        )
    rows, columns = (
        graph.add("Cast", [_inside(graph, sizes, axis, side)], to=TensorProto.FLOAT)
        for axis, side in enumerate((height, width))
    )
    pixels = graph.add("Cast", [graph.image(images)], to=TensorProto.FLOAT)
    pixels = graph.add("Sub", [pixels, _by_channel((outside - shift) / scale)])
    pixels = graph.add("Mul", [pixels, graph.add("Mul", [rows, _by_channel(scale)])])  # a small product first
    pixels = graph.add("Mul", [pixels, columns])
    return graph.as_image(graph.add("Add", [pixels, _by_channel(outside)]) if outside.any() else pixels)


def _normalized(detector: DetectionModel, images: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    return np.asarray(detector.normalize(*map(ops.convert_to_tensor, (images, sizes))), np.float64)


def _by_channel(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).reshape(1, 3, 1, 1)


def _inside(graph: OnnxGraph, sizes: str, axis: int, side: int) -> str:
    """Return whether rows, [B, 1, H, 1] for axis 0, or columns, [B, 1, 1, W], belong to the image, bool."""
    limit = graph.add("Gather", [sizes, np.array([axis])], axis=1)
    limit = graph.add("Reshape", [limit, np.array([-1, 1, 1, 1])])
    return graph.add("Less", [np.arange(side, dtype=np.int32).reshape((1, 1, -1, 1) if axis == 0 else -1), limit])


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
