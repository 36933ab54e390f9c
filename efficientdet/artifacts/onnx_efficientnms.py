"""A dense detector as an ONNX file for TensorRT, whose plugin EfficientNMS_TRT suppresses; nothing else runs it."""

import onnx
from onnx import helper

from efficientdet.artifacts.onnx_boxes import clipped, decoded
from efficientdet.artifacts.onnx_file import assembled, translated, value
from efficientdet.artifacts.onnx_graph import OnnxGraph
from model.dense_detector import DenseDetector
from model.detector import Detector
from program_support.errors import InputError

PLUGIN, DOMAIN = "EfficientNMS_TRT", "TRT"
_OUTPUTS = ("num_detections", "detection_boxes", "detection_scores", "detection_classes")


def efficientnms_model(detector: Detector) -> onnx.ModelProto:
    """`images` and `sizes` as of `onnx_model` -> num_detections [B, 1] int32, detection_boxes [B, D, 4] float32 yxyx pixels of
    the input, detection_scores [B, D] float32, detection_classes [B, D] int32 counted from 0.

    The plugin suppresses hard, whatever `SuppressionConfig.method` says, and looks at the best 4,096 scores of all. It gets
    decoded corners, and logits with `score_activation` or, of a softmax, probabilities without the background's. Raises
    InputError for boxes that it would measure otherwise, and for detectors of two stages.
    """
    if not isinstance(detector, DenseDetector):
        raise InputError(f"onnx-efficientnms: {PLUGIN} suppresses once; a two-stage detector does so twice, and has masks")
    config = detector.config.suppression
    if config.iou_pixel_offset or config.box_coder.last_pixel:
        raise InputError(f"onnx-efficientnms: {PLUGIN} measures boxes from corner to corner; these are a pixel larger")
    graph = OnnxGraph()
    logits, deltas = translated(graph, detector)
    boxes = decoded(graph, deltas, graph.add("Identity", [detector.anchors]), config.box_coder)
    if config.clip:
        boxes = clipped(graph, boxes, "sizes", last_pixel=False)
    scores = _scores(graph, logits, config.scores, classes=detector.network.outputs[0].shape[-1])
    outputs = graph.add_several(
        PLUGIN, [boxes, scores], 4, domain=DOMAIN, plugin_version="1", score_threshold=float(config.score_threshold),
        iou_threshold=float(config.iou_threshold), max_output_boxes=config.max_detections, background_class=-1,
        score_activation=int(config.scores == "sigmoid"), class_agnostic=int(not config.per_class), box_coding=0)
    for tensor, name in zip(outputs, _OUTPUTS, strict=True):
        graph.call_output(tensor, name)
    slots = config.max_detections
    shapes = (("int32", (None, 1)), ("float32", (None, slots, 4)), ("float32", (None, slots)), ("int32", (None, slots)))
    return assembled(graph, detector, [value(name, *kind) for name, kind in zip(_OUTPUTS, shapes, strict=True)],
                     domains=(DOMAIN,))


def without_plugin(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same cut off before the plugin: its inputs, boxes [B, A, 4] and scores [B, A, K], are what is put out."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    [plugin] = [node for node in cut.graph.node if node.op_type == PLUGIN]
    cut.graph.node.remove(plugin)
    del cut.graph.output[:]
    cut.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in plugin.input)
    return cut


def _scores(graph: OnnxGraph, logits: str, kind: str, *, classes: int) -> str:
    """What the plugin takes: it has a sigmoid of its own."""
    if kind == "sigmoid":
        return logits
    first = 1 if kind == "softmax, background first" else 0
    ends = (first, first + classes - 1)
    return graph.add("Slice", [graph.add("Softmax", [logits], axis=-1), *([end] for end in ends), [2]])
