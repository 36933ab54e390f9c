"""Sessions of ONNX Runtime for graphs that a test builds."""

import onnx
import onnxruntime
from onnx import TensorProto, helper

from efficientdet.plugins.onnx.graph import OnnxGraph
from efficientdet.plugins.onnx.suppression import detections_in_onnx

KINDS = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "uint8": TensorProto.UINT8}


def session_of(graph, inputs, outputs):
    """Return the model and its session of an OnnxGraph. inputs, outputs: name -> NumPy type and shape or None."""
    nodes = graph.nodes([*outputs])
    values = [
        [helper.make_tensor_value_info(name, KINDS[kind], shape) for name, (kind, shape) in entries.items()]
        for entries in (inputs, outputs)
    ]
    content = helper.make_graph(nodes, "test", *values, graph.initializers(nodes))
    model = helper.make_model(content, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return model, onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def detections_session(config, *, anchors, classes):
    """Return a function from logits [B, A, K], deltas [B, A, 4] and sizes [B, 2] to boxes, scores and classes."""
    graph, names = OnnxGraph(), ("boxes", "scores", "classes")
    found = detections_in_onnx(graph, "logits", "deltas", "sizes", anchors=anchors, classes=classes, config=config)
    for tensor, name in zip(found, names, strict=True):
        graph.call_output(tensor, name)
    count, slots = len(anchors), config.max_detections
    inputs = {
        "logits": ("float32", ["B", count, classes]),
        "deltas": ("float32", ["B", count, 4]),
        "sizes": ("int32", ["B", 2]),
    }
    outputs = ("float32", ["B", slots, 4]), ("float32", ["B", slots]), ("int32", ["B", slots])
    _, session = session_of(graph, inputs, dict(zip(names, outputs, strict=True)))
    return lambda *arrays: session.run(list(names), dict(zip(inputs, arrays, strict=True)))
