"""A detector's network as an ONNX file, or as OpenVINO's two, for runtimes that are faster at inference than Keras.

uint8 images in, the network's outputs out; normalization is inside, batch statistics are folded into the convolutions.
`object_detection.suppression.host_suppression` reads the outputs of a dense detector.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import numpy as np
import onnx
from onnx import TensorProto, helper

from dataset.input.resize import ResizeRule, host_resize
from efficientdet.artifacts.artifact_metadata import ArtifactMetadata
from efficientdet.artifacts.onnx_graph import OnnxGraph
from efficientdet.artifacts.onnx_layers import add_network
from efficientdet.artifacts.onnx_normalization import add_normalization
from efficientdet.checkpoints.checkpoint import Description
from efficientdet.devices.signal_stack import kept_signal_stack
from model.detector import Detector
from object_detection.onnx_nodes import Output
from program_support.atomic_files import unfinished_folder, write_bytes

OPSET = 18
_INPUTS = ("images", "sizes")


def export_onnx(
    detector: Detector, path: str | Path, *, description: Description, resize: ResizeRule, detects: bool = False
) -> None:
    """Write one file, see `onnx_model` and `write_onnx`."""
    write_onnx(onnx_model(detector, detects=detects), path, description=description, resize=resize)


def write_onnx(model: onnx.ModelProto, path: str | Path, *, description: Description, resize: ResizeRule) -> None:
    """Write a file, whole or not at all; what the classes are, how images become inputs and what the outputs are travels in it
    as JSON (`artifact_metadata`). Raises OSError."""
    helper.set_model_props(model, model_props(model, description=description, resize=resize))
    write_bytes(path, model.SerializeToString(), flush=True)


@kept_signal_stack()
def write_openvino(model: onnx.ModelProto, path: str | Path, *, description: Description, resize: ResizeRule) -> None:
    """Write `path`, an .xml, and the .bin beside it, each whole or not at all, in float32; what it says of itself stands in its
    `rt_info`. Raises OSError."""
    import openvino

    path = Path(path)
    network = openvino.Core().read_model(model.SerializeToString())
    for name, value in model_props(model, description=description, resize=resize).items():
        network.set_rt_info(value, [name])
    with unfinished_folder(path) as folder:
        try:
            openvino.save_model(network, folder / path.name, compress_to_fp16=False)
        except RuntimeError as error:  # as it tells a full disk
            raise OSError(None, str(error).strip().splitlines()[-1], str(path)) from error
        for suffix in (".bin", ".xml"):  # an .xml that stands has its weights
            os.replace(folder / path.with_suffix(suffix).name, path.with_suffix(suffix))


def model_props(model: onnx.ModelProto, *, description: Description, resize: ResizeRule) -> dict[str, str]:
    """What a file of this model, in whatever format, says of itself."""
    return ArtifactMetadata(description=description, resize=host_resize(resize),
                            outputs=tuple(output.name for output in model.graph.output)).to_props()


def onnx_model(detector: Detector, *, for_onnxruntime: bool = False, detects: bool = False) -> onnx.ModelProto:
    """`images` [B, H, W, 3] uint8 and `sizes` [B, 2] int32 -> the outputs of the network, of any B, with the weights of this
    moment.

    A dense detector's outputs are `class_logits` [B, A, K], `box_deltas` [B, A, 4] and `best_logits` [B, A], the highest of
    each anchor, all float32. Those of another network have the layout that Keras has for them, and the names
    `detector.output_names` where there are such, else `network.output_names` with `.1`, `.2`, .. after the name of a layer that
    has several.

    Raises InputError naming a layer that has no translation and brings none (see `OnnxGraph`).

    detects: a dense detector's outputs are `DETECTIONS` instead, boxes [B, D, 4] yxyx pixels of the input, scores [B, D]
    and classes [B, D] int32, best first, with scores of 0 behind the last; a two-stage network's are so already.

    for_onnxruntime: the same numbers by what costs ONNX Runtime least on a CPU, a tenth of its time less. `class_logits` is
    [B, A / n, n K] then, n anchors of a cell in a row, which is the same order of values: a Reshape at the end is a copy.
    """
    graph = OnnxGraph(for_onnxruntime=for_onnxruntime)
    tensors = translated(graph, detector)
    outputs = detector.onnx_detections(graph, tensors, _INPUTS[1]) if detects else None
    outputs = outputs or detector.onnx_outputs(graph, tensors) or _own_outputs(graph, detector, tensors)
    return assembled(graph, detector, outputs)


def translated(graph: OnnxGraph, detector: Detector) -> list[str]:
    """What the detector's network makes of `images` and `sizes`, the file's inputs: a tensor for each of its outputs."""
    pixels = add_normalization(graph, detector, images=_INPUTS[0], sizes=_INPUTS[1])
    return add_network(graph, detector.network, [pixels, _INPUTS[1]][:len(detector.network.inputs)])


def assembled(
    graph: OnnxGraph, detector: Detector, outputs: Mapping[str, Output], *, domains: Sequence[str] = ()
) -> onnx.ModelProto:
    """A file of the graph with these outputs, checked; `domains` beside ONNX's have nodes in it."""
    for name, output in outputs.items():
        graph.call_output(output.tensor, name)
    nodes = graph.nodes(list(outputs))
    inputs = [_value("images", "uint8", (*detector.image_size, 3)), _value("sizes", "int32", (2,))]
    model = helper.make_model(
        helper.make_graph(nodes, detector.network.name, inputs,
                          [_value(name, output.dtype, output.shape) for name, output in outputs.items()],
                          graph.initializers(nodes)),
        opset_imports=[helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)], ir_version=10,
        producer_name="efficientdet")
    onnx.checker.check_model(model)
    return model


def _own_outputs(graph: OnnxGraph, detector: Detector, tensors: Sequence[str]) -> dict[str, Output]:
    """The tensors that a network makes as the file's outputs, as Keras has them."""
    network = detector.network
    return {name: Output(graph.keras(tensor), output.dtype, output.shape[1:]) for name, tensor, output in zip(
        detector.output_names or _output_names(network), tensors, network.outputs, strict=True)}


def _output_names(network: keras.Model) -> list[str]:
    """A name for each output, as `onnx_model` says."""
    used: set[str] = set(_INPUTS)
    names = []
    for name in network.output_names:
        number, own = 0, name
        while own in used:
            number += 1
            own = f"{name}.{number}"
        used.add(own)
        names.append(own)
    return names


def _value(name: str, dtype: str, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    """An input or output of this shape behind the batch axis; whatever computes in 16 bits under Keras is float32."""
    is_float = "float" in dtype
    kind = TensorProto.FLOAT if is_float else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, ["B", *(f"{name}.{axis}" if side is None else side
                                                             for axis, side in enumerate(shape, start=1))])
