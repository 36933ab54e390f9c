"""Boxes as nodes of an ONNX file: decoded, cut to their images, suppressed by NonMaxSuppression, the best picked."""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from efficientdet.artifacts.onnx_graph import OnnxGraph
from object_detection.geometry.box_coding import BoxCoder

_NONE = np.float32(0)


def decoded(graph: OnnxGraph, deltas: str, anchors: str, coder: BoxCoder) -> str:
    """`BoxCoder.decode` of deltas and boxes of any rank, the coordinates last."""
    centres, sizes = graph.add_several("Split", [deltas], 2, axis=-1, num_outputs=2)
    low, high = graph.add_several("Split", [anchors], 2, axis=-1, num_outputs=2)
    if coder.last_pixel:
        high = graph.add("Add", [high, np.float32(1)])
    sides, middles = graph.add("Sub", [high, low]), graph.add("Div", [graph.add("Add", [low, high]), np.float32(2)])
    centres, sizes = (values if set(weights) == {1.0} else graph.add("Div", [values, np.float32(weights)])
                      for values, weights in ((centres, coder.weights[:2]), (sizes, coder.weights[2:])))
    if coder.log_size_limit is not None:
        sizes = graph.add("Min", [sizes, np.float32(coder.log_size_limit)])
    centres = graph.add("Add", [graph.add("Mul", [centres, sides]), middles])
    halves = graph.add("Div", [graph.add("Mul", [graph.add("Exp", [sizes]), sides]), np.float32(2)])
    low, high = graph.add("Sub", [centres, halves]), graph.add("Add", [centres, halves])
    return graph.add("Concat", [low, graph.add("Sub", [high, np.float32(1)]) if coder.last_pixel else high], axis=-1)


def clipped(graph: OnnxGraph, boxes: str, sizes: str, *, last_pixel: bool) -> str:
    """`clip_boxes` of [B, N, 4] to images of sizes [B, 2]."""
    limits = graph.add("Cast", [sizes], to=TensorProto.FLOAT)
    if last_pixel:
        limits = graph.add("Sub", [limits, np.float32(1)])
    limits = unsqueezed(graph, graph.add("Concat", [limits, limits], axis=1), axis=1)
    return graph.add("Min", [graph.add("Max", [boxes, _NONE]), limits])


def is_large(graph: OnnxGraph, boxes: str, least_side: float) -> str:
    """[B, N, 4] -> [B, N] float32, 1 where both sides reach it."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    shorter = graph.add("ReduceMin", [graph.add("Sub", [high, low]), np.array([2])], keepdims=0)
    return graph.add("Cast", [graph.add("GreaterOrEqual", [shorter, np.float32(least_side)])], to=TensorProto.FLOAT)


def spread_over_classes(graph: OnnxGraph, scores: str, numbers: str, *, classes: int) -> str:
    """Scores [B, N] of boxes of the classes `numbers` [B, N] -> [B, K, N], 0 in the rows of other classes."""
    is_class = graph.add("Equal", [unsqueezed(graph, numbers, axis=1), np.arange(classes)[:, None]])
    return graph.add("Mul", [graph.add("Cast", [is_class], to=TensorProto.FLOAT), unsqueezed(graph, scores, axis=1)])


def not_suppressed(graph: OnnxGraph, boxes: str, scores: str, *, iou_threshold: float, most: int | None = None) -> str:
    """Of boxes [B, N, 4] with scores [B, C, N] above 0 those that no better one of their class suppresses, the best `most` of
    each class: 1 in [B, N]."""
    chosen = graph.add("NonMaxSuppression", [boxes, scores, np.array([most or 2**31 - 1]), np.float32([iou_threshold]),
                                             np.float32([0.0])])
    places = graph.add("Gather", [chosen, np.array([0, 2])], axis=1)
    # Of the chosen ones themselves, so that a runtime that checks shapes beforehand sees them agree
    ones = graph.add("Cast", [graph.add("Gather", [chosen, np.array(0)], axis=1)], to=TensorProto.FLOAT)
    ones = graph.add("Add", [graph.add("Mul", [ones, _NONE]), np.float32(1)])
    shape = graph.add("Gather", [graph.add("Shape", [scores]), np.array([0, 2])])
    return graph.add("ScatterND", [graph.add("ConstantOfShape", [shape]), places, ones])


def best_of(
    graph: OnnxGraph, boxes: str, scores: str, others: Sequence[str], *, candidates: int, count: int
) -> tuple[str, str, list[str]]:
    """The `count` boxes [B, N, 4] of the highest scores [B, N], best first, and the same entries of `others` [B, N]; zeros
    behind them where N, which is `candidates`, is less."""
    best, places = graph.add_several("TopK", [scores, np.array([min(count, candidates)])], 2)
    picked = [entries(graph, values, places) for values in (boxes, *others)]
    if candidates < count:
        best, *picked = (graph.add("Pad", [values, np.array([0] * (rank + 1) + [count - candidates] + [0] * (rank - 2))])
                         for values, rank in zip((best, *picked), (2, 3, *[2] * len(others)), strict=True))
    return picked[0], best, picked[1:]


def in_slots(graph: OnnxGraph, boxes: str, scores: str, own: str) -> tuple[str, str, str]:
    """Boxes [B, D, 4], scores [B, D] and classes [B, D] as int32, with zeros where the score is 0."""
    exist = graph.add("Greater", [scores, _NONE])
    boxes = graph.add("Where", [unsqueezed(graph, exist), boxes, _NONE])
    own = graph.add("Where", [exist, own, np.array(0)])
    return boxes, scores, graph.add("Cast", [own], to=TensorProto.INT32)


def above(graph: OnnxGraph, scores: str, threshold: float) -> str:
    """Scores, and 0 for those that are not above the threshold."""
    return graph.add("Where", [graph.add("Greater", [scores, np.float32(threshold)]), scores, _NONE])


def entries(graph: OnnxGraph, values: str, numbers: str) -> str:
    """`object_detection.gather` of [B, N, ...] and [B, M]: [B, M, ...]."""
    return graph.add("GatherND", [values, unsqueezed(graph, numbers)], batch_dims=1)


def flat(graph: OnnxGraph, tensor: str) -> str:
    """[N] of any shape."""
    return graph.add("Reshape", [tensor, np.array([-1])])


def unsqueezed(graph: OnnxGraph, tensor: str, *, axis: int = -1) -> str:
    """With a further axis of length 1."""
    return graph.add("Unsqueeze", [tensor, np.array([axis])])
