"""Export of a dense detector to an ONNX file with the plugin EfficientNMS_TRT, which runs only in TensorRT."""

import onnx
from onnx import helper

from efficientdet.onnx_translation.graph import OnnxGraph
from efficientdet.onnx_translation.model import assembled, translated
from model.detection_model import DetectionModel
from object_detection.onnx_nodes import Output

PLUGIN, DOMAIN = "EfficientNMS_TRT", "TRT"
_OUTPUTS = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")


def efficientnms_model(detector: DetectionModel) -> onnx.ModelProto:
    """Return a model with the inputs `images` and `sizes` of `onnx_model` and the outputs of the plugin.

    The outputs are num_detections [B, 1] int32, detection_boxes [B, D, 4] float32 yxyx in pixels of the input,
    detection_scores [B, D] float32 and detection_classes [B, D] int32, counted from 0. The plugin uses hard
    suppression, regardless of `SuppressionConfig.method`, on the 4,096 highest scores. Its inputs are decoded corners,
    and logits with `score_activation` or softmax probabilities without the background.

    Raises:
        InputError: for boxes whose IoU the plugin would compute differently, and for two-stage detectors.
    """
    graph = OnnxGraph()
    boxes, scores, attributes = detector.postprocessing.efficientnms_inputs(graph, translated(graph, detector), "sizes")
    tensors = graph.add_several(
        PLUGIN,
        [boxes, scores],
        len(_OUTPUTS),
        domain=DOMAIN,
        plugin_version="1",
        background_class=-1,
        box_coding=0,
        **attributes,
    )
    slots = attributes["max_output_boxes"]
    shapes = (("int32", (1,)), ("float32", (slots, 4)), ("float32", (slots,)), ("int32", (slots,)))
    return assembled(
        graph,
        detector,
        {name: Output(tensor, *kind) for name, tensor, kind in zip(_OUTPUTS, tensors, shapes, strict=True)},
        domains=(DOMAIN,),
    )


def without_plugin(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the plugin; its inputs boxes [B, A, 4] and scores [B, A, K] become outputs."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    [plugin] = [node for node in cut.graph.node if node.op_type == PLUGIN]
    cut.graph.node.remove(plugin)
    del cut.graph.output[:]
    cut.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in plugin.input)
    return cut
