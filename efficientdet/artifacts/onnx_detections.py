"""What a dense detector's outputs say, as nodes of an ONNX file: candidates, boxes and suppression, as
`object_detection.suppression.tensor_suppression` has them.

Hard suppression is ONNX's NonMaxSuppression. Gaussian suppression, which changes scores as it goes, is a Loop that picks one
box a step.
"""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

from efficientdet.artifacts.onnx_boxes import (
    above,
    best_of,
    clipped,
    decoded,
    entries,
    in_slots,
    not_suppressed,
    spread_over_classes,
    unsqueezed,
)
from efficientdet.artifacts.onnx_graph import OnnxGraph
from model.dense_detector import DenseDetector
from object_detection.suppression.tensor_suppression import SuppressionConfig

_NONE = np.float32(0)


def dense_detections(
    graph: OnnxGraph, detector: DenseDetector, logits: str, deltas: str, sizes: str
) -> tuple[str, str, str]:
    """Logits [B, A, K], deltas [B, A, 4] and sizes [B, 2] -> boxes [B, D, 4] yxyx pixels of the input, cut to the image, best
    first, scores [B, D], 0 where there is none, and classes [B, D] int32."""
    config, classes = detector.config.suppression, detector.network.outputs[0].shape[-1]
    values = logits
    if config.scores != "sigmoid":
        first = 1 if config.scores == "softmax, background first" else 0
        classes -= 1
        values = graph.add("Slice", [graph.add("LogSoftmax", [logits], axis=-1), np.array([first]), np.array([first + classes]),
                                     np.array([2])])
    best, numbers, own, count = _candidates(graph, values, config, anchors=len(detector.anchors), classes=classes,
                                            level_sizes=detector.level_sizes)
    scores = graph.add("Sigmoid" if config.scores == "sigmoid" else "Exp", [best])
    own_deltas = entries(graph, deltas, numbers)
    boxes = decoded(graph, own_deltas, graph.add("Gather", [detector.anchors, numbers]), config.box_coder)
    if config.clip:
        boxes = clipped(graph, boxes, sizes, last_pixel=config.box_coder.last_pixel)
    scores = above(graph, scores, config.score_threshold)
    measured = boxes
    if config.iou_pixel_offset:
        measured = graph.add("Add", [boxes, np.float32([0, 0, config.iou_pixel_offset, config.iou_pixel_offset])])
    if config.method == "gaussian":
        scores, places = _softly_suppressed(graph, measured, scores, own, config=config, count=count)
        boxes = entries(graph, boxes, places)
        own = entries(graph, own, places)
    else:
        by_class = (spread_over_classes(graph, scores, own, classes=classes) if config.per_class
                    else unsqueezed(graph, scores, axis=1))
        kept = not_suppressed(graph, measured, by_class, iou_threshold=config.iou_threshold)
        boxes, scores, [own] = best_of(graph, boxes, graph.add("Mul", [scores, kept]), [own], candidates=count,
                                       count=config.max_detections)
    return in_slots(graph, clipped(graph, boxes, sizes, last_pixel=False), scores, own)


def _candidates(
    graph: OnnxGraph, values: str, config: SuppressionConfig, *, anchors: int, classes: int, level_sizes: Sequence[int]
) -> tuple[str, str, str, int]:
    """`suppression.top_candidates` of values [B, A, K], but for the order of equal ones: values, anchors and classes [B, N],
    and N."""
    if config.candidates_per_class is not None:
        each = min(config.candidates_per_class, anchors)
        found = graph.add_several("TopK", [graph.add("Transpose", [values], perm=[0, 2, 1]), np.array([each])], 2)
        best, numbers = (graph.add("Reshape", [part, np.array([0, -1])]) for part in found)  # [B, K each]
        count = min(config.candidates, classes * each)
        best, places = graph.add_several("TopK", [best, np.array([count])], 2)
        numbers = entries(graph, numbers, places)
        return best, numbers, graph.add("Div", [places, np.array(each)]), count
    if config.candidates_per_level is None:
        return _top(graph, values, config.candidates, anchors=anchors, classes=classes)
    levels, first = [], 0
    for size in level_sizes:
        own = graph.add("Slice", [values, np.array([first]), np.array([first + size]), np.array([1])])
        best, numbers, of_class, count = _top(graph, own, config.candidates_per_level, anchors=size, classes=classes)
        levels.append((best, graph.add("Add", [numbers, np.array(first)]), of_class, count))
        first += size
    best, numbers, own = (graph.add("Concat", list(parts), axis=1) for parts in list(zip(*levels, strict=True))[:3])
    count = min(config.candidates, sum(level[3] for level in levels))
    best, places = graph.add_several("TopK", [best, np.array([count])], 2)
    numbers, own = (entries(graph, part, places) for part in (numbers, own))
    return best, numbers, own, count


def _top(graph: OnnxGraph, values: str, count: int, *, anchors: int, classes: int) -> tuple[str, str, str, int]:
    """The `count` highest of [B, A, K], among those anchors whose best class is highest."""
    kept = min(count, anchors)
    _, numbers = graph.add_several("TopK", [graph.add("ReduceMax", [values, np.array([2])], keepdims=0), np.array([kept])], 2)
    own = entries(graph, values, numbers)  # [B, kept, K]
    count = min(count, kept * classes)
    best, places = graph.add_several("TopK", [graph.add("Reshape", [own, np.array([0, -1])]), np.array([count])], 2)
    rows = graph.add("Div", [places, np.array(classes)])
    return (best, entries(graph, numbers, rows),
            graph.add("Mod", [places, np.array(classes)]), count)


def _softly_suppressed(
    graph: OnnxGraph, boxes: str, scores: str, numbers: str, *, config: SuppressionConfig, count: int
) -> tuple[str, str]:
    """Of boxes [B, N, 4] with scores [B, N] and classes [B, N]: the scores [B, D] and places [B, D] of those picked one after
    another, each time shrinking the scores of what overlaps the pick."""
    step = graph.inner("pick")
    remaining = "pick.remaining"
    best_score = step.add("ReduceMax", [remaining, np.array([1])], keepdims=1)
    best = step.add("ArgMax", [remaining], axis=1, keepdims=1)  # [B, 1]
    box = entries(step, boxes, best)  # [B, 1, 4]
    survival = step.add("Exp", [step.add("Mul", [step.add("Mul", [overlap := _overlap(step, box, boxes), overlap]),
                                                 np.float32(-1 / config.sigma)])])
    if config.per_class:
        own = entries(step, numbers, best)
        survival = step.add("Where", [step.add("Equal", [numbers, own]), survival, np.float32(1)])
    left = step.add("Mul", [remaining, survival])
    left = step.add("Where", [step.add("Equal", [np.arange(count)[None], best]), _NONE, left])
    left = above(step, left, config.score_threshold)
    go_on = step.add("Identity", ["pick.go_on"])
    values = helper.make_tensor_value_info
    nodes = step.nodes([go_on, left, best_score, best])
    body = helper.make_graph(
        nodes, "pick", [values("pick.number", TensorProto.INT64, []), values("pick.go_on", TensorProto.BOOL, []),
                        values(remaining, TensorProto.FLOAT, None)],
        [values(go_on, TensorProto.BOOL, []), values(left, TensorProto.FLOAT, None),
         values(best_score, TensorProto.FLOAT, None), values(best, TensorProto.INT64, None)], step.initializers(nodes))
    _, found, places = graph.add_several("Loop", [np.array(config.max_detections), np.array(True), scores], 3, body=body)
    return tuple(graph.add("Transpose", [graph.add("Squeeze", [part, np.array([2])])], perm=[1, 0]) for part in (found, places))


def _overlap(graph: OnnxGraph, box: str, boxes: str) -> str:
    """IoU of one box [B, 1, 4] with boxes [B, N, 4]: [B, N], 0 where one is empty."""
    low, high = graph.add_several("Split", [box], 2, axis=-1, num_outputs=2)
    lows, highs = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)

    def area(low, high):
        return graph.add("ReduceProd", [graph.add("Max", [graph.add("Sub", [high, low]), _NONE]), np.array([2])], keepdims=0)

    shared = area(graph.add("Max", [low, lows]), graph.add("Min", [high, highs]))
    union = graph.add("Sub", [graph.add("Add", [area(low, high), area(lows, highs)]), shared])
    return graph.add("Div", [shared, graph.add("Max", [union, np.float32(1e-30)])])
