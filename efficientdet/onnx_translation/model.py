"""Translation of a detector to ONNX, whose runtimes are faster at inference than Keras.

The model computes the network's outputs from uint8 images. It includes normalization; batch norm is folded into
convolutions. `object_detection.suppression.host_suppression` post-processes the outputs of a dense detector.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import onnx
from onnx import TensorProto, helper

from dataset.input.host_resize import HostResize
from efficientdet.onnx_translation.graph import OnnxGraph
from efficientdet.onnx_translation.layers import add_network
from efficientdet.onnx_translation.normalization import add_normalization
from efficientdet.onnx_translation.resize import add_resize
from model.detection_model import DetectionModel
from object_detection.onnx_nodes import Output, clipped
from object_detection.structures import DETECTIONS

OPSET = 18
_INPUTS = ("images", "sizes")
_NETWORK_OUTPUT = "network_output_"  # names of the tensors that post-processing reads


def onnx_model(detector: DetectionModel, *, for_onnxruntime: bool = False, detects: bool = False) -> onnx.ModelProto:
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
    return assembled(graph, detector, added_outputs(graph, detector, detects=detects))


def web_model(detector: DetectionModel, resize: HostResize) -> onnx.ModelProto:
    """Return a model that detects in one image of any size: it includes `resize`.

    The input is `image` [h, w, 4] uint8, RGBA as in a canvas of a web page. The outputs are `DETECTIONS` as those of
    `onnx_model`, but with boxes in pixels of the image and clipped to it. Masks are left out.

    Raises:
        InputError: as `onnx_model` does.
    """
    graph = OnnxGraph()
    scales = add_resize(graph, resize, "image", images=_INPUTS[0], sizes=_INPUTS[1])
    detections = added_outputs(graph, detector, detects=True)
    boxes = clipped(graph, detections["boxes"].tensor, _INPUTS[1], last_pixel=False)
    boxes = graph.add("Mul", [boxes, graph.add("Concat", [scales, scales], axis=0)])
    outputs = {**{name: detections[name] for name in DETECTIONS}, "boxes": detections["boxes"]._replace(tensor=boxes)}
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["h", "w", 4])
    return assembled(graph, detector, outputs, inputs=[image])


def without_postprocessing(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the network of a model that detects; None if it has no separate post-processing."""
    needed = {name for node in model.graph.node for name in node.output if name.startswith(_NETWORK_OUTPUT)}
    if not needed:
        return None
    outputs = sorted(needed)
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if needed & {*node.output}:
            needed.update(node.input)
            nodes.insert(0, node)
    return helper.make_model(
        helper.make_graph(
            nodes,
            model.graph.name,
            model.graph.input,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [initializer for initializer in model.graph.initializer if initializer.name in needed],
        ),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )


def added_outputs(graph: OnnxGraph, detector: DetectionModel, *, detects: bool) -> dict[str, Output]:
    """Add normalization, network and, with `detects`, post-processing; return the outputs of `onnx_model`."""
    tensors = translated(graph, detector)
    outputs = None
    if detects:
        named = [
            graph.add("Identity", [tensor], name=f"{_NETWORK_OUTPUT}{number}") for number, tensor in enumerate(tensors)
        ]
        outputs = detector.postprocessing.onnx_detections(graph, named, _INPUTS[1])
    return outputs or detector.postprocessing.onnx_outputs(graph, tensors) or _own_outputs(graph, detector, tensors)


def translated(graph: OnnxGraph, detector: DetectionModel) -> list[str]:
    """Add normalization and network; return a tensor for each output of the network."""
    pixels = add_normalization(graph, detector, images=_INPUTS[0], sizes=_INPUTS[1])
    return add_network(graph, detector.network, [pixels, _INPUTS[1]][: len(detector.network.inputs)])


def assembled(
    graph: OnnxGraph,
    detector: DetectionModel,
    outputs: Mapping[str, Output],
    *,
    inputs: Sequence[onnx.ValueInfoProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return the checked model of a graph with these outputs.

    inputs: other inputs than `images` and `sizes`; domains: additional operator domains.
    """
    for name, output in outputs.items():
        graph.call_output(output.tensor, name)
    nodes = graph.nodes(list(outputs))
    usual = [_value("images", "uint8", (*detector.image_size, 3)), _value("sizes", "int32", (2,))]
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            detector.network.name,
            inputs or usual,
            [_value(name, output.dtype, output.shape) for name, output in outputs.items()],
            graph.initializers(nodes),
        ),
        opset_imports=opsets,
        # The lowest for these operators: a runtime refuses a later one than its own, whatever the operators are
        ir_version=helper.find_min_ir_version_for(opsets, ignore_unknown=True),
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
    used: set[str] = set(_INPUTS)
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
