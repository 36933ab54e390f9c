"""Sessions of ONNX Runtime for graphs that a test builds."""

import onnx
import onnxruntime
from onnx import TensorProto, helper

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
