"""The layers between the stages of a two-stage network as nodes of an ONNX file (`model/region_layers.py`).

Suppression is ONNX's NonMaxSuppression and RoIAlign its RoiAlign: the number of regions is that of the values at hand where
Keras has slots, and masks are computed of detections alone.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from efficientdet.export.onnx_graph import OnnxGraph
from object_detection.box_coding import BoxCoder
from object_detection.region_detections import LEAST_SIDE
from object_detection.roi_align import CANONICAL_LEVEL, CANONICAL_SIDE, level_strides

_X_FIRST = np.array([1, 0, 3, 2])
_NONE = np.float32(0)


def proposals(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """`Proposals`: boxes [B, P, 4], and which of them exist."""
    logits, deltas, sizes = map(graph.keras, inputs)
    grid, config = layer.grid, layer.config
    found, first = [], 0
    for level, size in enumerate(grid.level_sizes):
        ends = [np.array([first]), np.array([first + size]), np.array([1])]
        best, numbers = graph.add_several("TopK", [graph.add("Slice", [logits, *ends]),
                                                   np.array([min(config.candidates_per_level, size)])], 2)
        own = graph.add("GatherND", [graph.add("Slice", [deltas, *ends]), _unsqueezed(graph, numbers)], batch_dims=1)
        anchors = graph.add("Gather", [grid.boxes[first:first + size], numbers])
        level_scores = [graph.add("Sigmoid", [best]) if other == level else graph.add("Mul", [best, _NONE])
                        for other in range(len(grid.level_sizes))]
        found.append((graph.add("Sigmoid", [best]), decoded(graph, own, anchors, config.box_coder), level_scores))
        first += size
    scores = graph.add("Concat", [values for values, _, _ in found], axis=1)
    boxes = graph.add("Concat", [values for _, values, _ in found], axis=1)
    boxes = _clipped(graph, boxes, sizes, last_pixel=config.box_coder.last_pixel)
    by_level = [graph.add("Concat", [values[level] for _, _, values in found], axis=1) for level in range(len(found))]
    by_level = graph.add("Concat", [_unsqueezed(graph, values, axis=1) for values in by_level], axis=1)  # [B, L, N]
    large = _unsqueezed(graph, _is_large(graph, boxes, config.least_side), axis=1)
    kept = _kept(graph, boxes, graph.add("Mul", [by_level, large]), iou_threshold=config.iou_threshold,
                 most=config.kept_per_level)
    boxes, scores, _ = _best(graph, boxes, graph.add("Mul", [scores, kept]), [], count=node.outputs[0].shape[1],
                             candidates=sum(min(config.candidates_per_level, size) for size in grid.level_sizes))
    return [boxes, graph.add("Greater", [scores, _NONE])]


def aligned(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """`AlignedRegions`: features of all regions, or of those whose score is above 0."""
    has_scores = len(node.input_tensors[-1].shape) == 2
    *levels, boxes = inputs[:-1] if has_scores else inputs
    count = node.input_tensors[len(levels)].shape[1]
    boxes = graph.add("Reshape", [graph.keras(boxes), np.array([-1, 4])])
    if has_scores:
        rows = _places(graph, graph.add("Greater", [_flat(graph, graph.keras(inputs[-1])), _NONE]))
        boxes = graph.add("Gather", [boxes, rows])
    else:
        rows = _numbers(graph, boxes)
    images = graph.add("Div", [rows, np.array(count)])
    regions = graph.add("Gather", [boxes, _X_FIRST], axis=1)
    strides = level_strides([tensor.shape[1:3] for tensor in node.input_tensors[:len(levels)]], layer.image_size)
    chosen = _levels_of(graph, boxes, finest=round(math.log2(strides[0][0])), count=len(levels),
                        slack=layer.pooling.level_slack)
    # The one kind of RoiAlign makes a side a cell long at least; the other does not, and shifts by half a cell
    has_least_side = layer.pooling.least_side > 0
    features, order = [], []
    for number, (level, stride) in enumerate(zip(levels, strides, strict=True)):
        own = _places(graph, graph.add("Equal", [chosen, np.float32(number)]))
        boxes = graph.add("Gather", [regions, own])
        if not has_least_side:
            boxes = graph.add("Add", [boxes, np.float32(stride[0] / 2)])
        pooled = graph.add("RoiAlign", [graph.image(level), boxes, graph.add("Gather", [images, own])],
                           coordinate_transformation_mode="output_half_pixel" if has_least_side else "half_pixel", mode="avg",
                           sampling_ratio=layer.pooling.samples, spatial_scale=1.0 / stride[0], output_height=layer.side,
                           output_width=layer.side)
        features.append(pooled)
        order.append(own)
    order = graph.add("Concat", order, axis=0)
    back = graph.add("ScatterElements", [order, order, _numbers(graph, order)], axis=0)
    return [graph.as_image(graph.add("Gather", [graph.add("Concat", features, axis=0), back]))]


def detected(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """`DetectedRegions`: boxes [B, D, 4], scores [B, D] and classes [B, D]."""
    logits, deltas, boxes, valid, sizes = map(graph.keras, inputs)
    suppression, count = layer.config, node.input_tensors[2].shape[1]
    classes = node.input_tensors[0].shape[-1] - 1
    probabilities = graph.add("Slice", [graph.add("Softmax", [logits], axis=-1), np.array([1]), np.array([classes + 1]),
                                        np.array([1])])
    probabilities = graph.add("Reshape", [probabilities, np.array([-1, count, classes])])
    exist = _unsqueezed(graph, graph.add("Cast", [valid], to=TensorProto.FLOAT))
    flat = graph.add("Reshape", [graph.add("Mul", [probabilities, exist]), np.array([0, -1])])
    candidates = min(suppression.candidates, count * classes)
    best, places = graph.add_several("TopK", [flat, np.array([candidates])], 2)
    numbers, own = graph.add("Div", [places, np.array(classes)]), graph.add("Mod", [places, np.array(classes)])
    own_deltas = graph.add("Reshape", [deltas, np.array([-1, count * (classes + 1), 4])])
    picked = graph.add("Add", [graph.add("Mul", [numbers, np.array(classes + 1)]), graph.add("Add", [own, np.array(1)])])
    own_deltas = graph.add("GatherND", [own_deltas, _unsqueezed(graph, picked)], batch_dims=1)
    regions = graph.add("GatherND", [boxes, _unsqueezed(graph, numbers)], batch_dims=1)
    found = decoded(graph, own_deltas, regions, suppression.box_coder)
    found = _clipped(graph, found, sizes, last_pixel=suppression.box_coder.last_pixel)
    taken = graph.add("Cast", [graph.add("Greater", [best, np.float32(suppression.score_threshold)])], to=TensorProto.FLOAT)
    scores = graph.add("Mul", [graph.add("Mul", [best, taken]), _is_large(graph, found, LEAST_SIDE)])
    is_class = graph.add("Equal", [_unsqueezed(graph, own, axis=1), np.arange(classes)[:, None]])  # [B, K, N]
    by_class = graph.add("Mul", [graph.add("Cast", [is_class], to=TensorProto.FLOAT), _unsqueezed(graph, scores, axis=1)])
    kept = _kept(graph, found, by_class, iou_threshold=suppression.iou_threshold)
    found, scores, [own] = _best(graph, found, graph.add("Mul", [scores, kept]), [own], candidates=candidates,
                                 count=suppression.max_detections)
    exist = graph.add("Greater", [scores, _NONE])
    found = graph.add("Where", [_unsqueezed(graph, exist), found, _NONE])
    own = graph.add("Where", [exist, own, np.array(0)])
    return [found, scores, graph.add("Cast", [own], to=TensorProto.INT32)]


def masks_of_classes(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """`MasksOfClasses`: probabilities [B, D, S, S], of the regions that `aligned` took by the same scores."""
    logits, (scores, classes) = graph.image(inputs[0]), map(graph.keras, inputs[1:])
    count, side = node.outputs[0].shape[1:3]
    rows = _places(graph, graph.add("Greater", [_flat(graph, scores), _NONE]))
    own = graph.add("Gather", [_flat(graph, graph.add("Cast", [classes], to=TensorProto.INT64)), rows])
    own = graph.add("GatherND", [logits, _unsqueezed(graph, graph.add("Add", [own, np.array(1)]))], batch_dims=1)
    shape = graph.add("Concat", [graph.add("Shape", [_flat(graph, scores)]), np.array([side, side])], axis=0)
    empty = graph.add("ConstantOfShape", [shape])
    filled = graph.add("ScatterND", [empty, _unsqueezed(graph, rows), graph.add("Sigmoid", [own])])
    return [graph.add("Reshape", [filled, np.array([-1, count, side, side])])]


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


def _clipped(graph: OnnxGraph, boxes: str, sizes: str, *, last_pixel: bool) -> str:
    """`clip_boxes` of [B, N, 4] to images of sizes [B, 2]."""
    limits = graph.add("Cast", [sizes], to=TensorProto.FLOAT)
    if last_pixel:
        limits = graph.add("Sub", [limits, np.float32(1)])
    limits = _unsqueezed(graph, graph.add("Concat", [limits, limits], axis=1), axis=1)
    return graph.add("Min", [graph.add("Max", [boxes, _NONE]), limits])


def _is_large(graph: OnnxGraph, boxes: str, least_side: float) -> str:
    """[B, N, 4] -> [B, N] float32, 1 where both sides reach it."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    shorter = graph.add("ReduceMin", [graph.add("Sub", [high, low]), np.array([2])], keepdims=0)
    return graph.add("Cast", [graph.add("GreaterOrEqual", [shorter, np.float32(least_side)])], to=TensorProto.FLOAT)


def _kept(graph: OnnxGraph, boxes: str, scores: str, *, iou_threshold: float, most: int | None = None) -> str:
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


def _best(
    graph: OnnxGraph, boxes: str, scores: str, others: Sequence[str], *, candidates: int, count: int
) -> tuple[str, str, list[str]]:
    """The `count` boxes [B, N, 4] of the highest scores [B, N], best first, and the same entries of `others` [B, N]; zeros
    behind them where N, which is `candidates`, is less."""
    best, places = graph.add_several("TopK", [scores, np.array([min(count, candidates)])], 2)
    picked = [graph.add("GatherND", [values, _unsqueezed(graph, places)], batch_dims=1) for values in (boxes, *others)]
    if candidates < count:
        best, *picked = (graph.add("Pad", [values, np.array([0] * (rank + 1) + [count - candidates] + [0] * (rank - 2))])
                         for values, rank in zip((best, *picked), (2, 3, *[2] * len(others)), strict=True))
    return picked[0], best, picked[1:]


def _levels_of(graph: OnnxGraph, boxes: str, *, finest: int, count: int, slack: float) -> str:
    """`roi_align.region_levels` of [R, 4], float32."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    area = graph.add("ReduceProd", [graph.add("Sub", [high, low]), np.array([1])], keepdims=0)
    octaves = graph.add("Div", [graph.add("Log", [graph.add("Div", [graph.add("Sqrt", [area]), np.float32(CANONICAL_SIDE)])]),
                                np.float32(math.log(2))])
    wanted = graph.add("Floor", [graph.add("Add", [octaves, np.float32(CANONICAL_LEVEL + slack)])])
    wanted = graph.add("Clip", [wanted, np.float32(finest), np.float32(finest + count - 1)])
    return graph.add("Sub", [wanted, np.float32(finest)])


def _places(graph: OnnxGraph, chosen: str) -> str:
    """Of the True ones of [N] bool: [n] int64."""
    return _flat(graph, graph.add("NonZero", [chosen]))


def _numbers(graph: OnnxGraph, rows: str) -> str:
    """0 .. N - 1 for N rows, int64."""
    count = graph.add("Squeeze", [graph.add("Slice", [graph.add("Shape", [rows]), np.array([0]), np.array([1])])])
    return graph.add("Range", [np.array(0), count, np.array(1)])


def _flat(graph: OnnxGraph, tensor: str) -> str:
    return graph.add("Reshape", [tensor, np.array([-1])])


def _unsqueezed(graph: OnnxGraph, tensor: str, *, axis: int = -1) -> str:
    return graph.add("Unsqueeze", [tensor, np.array([axis])])
