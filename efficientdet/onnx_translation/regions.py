"""Translation of the layers between the stages of a two-stage network to ONNX (`model/region_layers.py`).

Uses ONNX's NonMaxSuppression and RoiAlign. The number of regions is dynamic, while Keras pads to a fixed number, and
masks are computed only for detections.
"""

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from efficientdet.onnx_translation.graph import OnnxGraph
from object_detection.onnx_nodes import (
    above,
    best_of,
    clipped,
    entries,
    flat,
    in_slots,
    is_large,
    not_suppressed,
    spread_over_classes,
    unsqueezed,
)
from object_detection.regions.region_detections import MIN_SIDE
from object_detection.regions.roi_align import CANONICAL_LEVEL, CANONICAL_SIDE, level_strides

_X_FIRST = np.array([1, 0, 3, 2])
_NONE = np.float32(0)


def proposals(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """Add `Proposals`; return boxes [B, P, 4] and their validity."""
    logits, deltas, sizes = map(graph.keras, inputs)
    grid, config = layer.grid, layer.config
    levels_proposed, first = [], 0
    for level, size in enumerate(grid.level_sizes):
        ends = [np.array([first]), np.array([first + size]), np.array([1])]
        best, numbers = graph.add_several(
            "TopK", [graph.add("Slice", [logits, *ends]), np.array([min(config.candidates_per_level, size)])], 2
        )
        deltas_of_best = graph.add(
            "GatherND", [graph.add("Slice", [deltas, *ends]), unsqueezed(graph, numbers)], batch_dims=1
        )
        anchors = graph.add("Gather", [grid.boxes[first : first + size], numbers])
        level_scores = [
            graph.add("Sigmoid", [best]) if other == level else graph.add("Mul", [best, _NONE])
            for other in range(len(grid.level_sizes))
        ]
        levels_proposed.append(
            (
                graph.add("Sigmoid", [best]),
                config.box_coder.decode_in_onnx(graph, deltas_of_best, anchors),
                level_scores,
            )
        )
        first += size
    scores = graph.add("Concat", [values for values, _, _ in levels_proposed], axis=1)
    boxes = graph.add("Concat", [values for _, values, _ in levels_proposed], axis=1)
    boxes = clipped(graph, boxes, sizes, last_pixel=config.box_coder.last_pixel)
    of_levels = [
        graph.add("Concat", [values[level] for _, _, values in levels_proposed], axis=1)
        for level in range(len(levels_proposed))
    ]
    by_level = graph.add("Concat", [unsqueezed(graph, values, axis=1) for values in of_levels], axis=1)  # [B, L, N]
    large = unsqueezed(graph, is_large(graph, boxes, config.min_side), axis=1)
    not_suppressed_mask = not_suppressed(
        graph,
        boxes,
        graph.add("Mul", [by_level, large]),
        iou_threshold=config.iou_threshold,
        most=config.kept_per_level,
    )
    boxes, scores, _ = best_of(
        graph,
        boxes,
        graph.add("Mul", [scores, not_suppressed_mask]),
        [],
        count=node.outputs[0].shape[1],
        candidates=sum(min(config.candidates_per_level, size) for size in grid.level_sizes),
    )
    return [boxes, graph.add("Greater", [scores, _NONE])]


def aligned(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """Add `AlignedRegions`; return features of all regions, or of those with a score above 0."""
    has_scores = len(node.input_tensors[-1].shape) == 2
    *levels, boxes = inputs[:-1] if has_scores else inputs
    count = node.input_tensors[len(levels)].shape[1]
    boxes = graph.add("Reshape", [graph.keras(boxes), np.array([-1, 4])])
    if has_scores:
        rows = _places(graph, graph.add("Greater", [flat(graph, graph.keras(inputs[-1])), _NONE]))
        boxes = graph.add("Gather", [boxes, rows])
    else:
        rows = _numbers(graph, boxes)
    images = graph.add("Div", [rows, np.array(count)])
    regions = graph.add("Gather", [boxes, _X_FIRST], axis=1)
    strides = level_strides([tensor.shape[1:3] for tensor in node.input_tensors[: len(levels)]], layer.image_size)
    chosen = _levels_of(
        graph, boxes, finest=round(math.log2(strides[0][0])), count=len(levels), slack=layer.pooling.level_slack
    )
    # One mode of RoiAlign has a minimum side of one cell; the other has none, and shifts by half a cell.
    has_min_side = layer.pooling.min_side > 0
    features, places = [], []
    for number, (level, stride) in enumerate(zip(levels, strides, strict=True)):
        of_level = _places(graph, graph.add("Equal", [chosen, np.float32(number)]))
        boxes = graph.add("Gather", [regions, of_level])
        if not has_min_side:
            boxes = graph.add("Add", [boxes, np.float32(stride[0] / 2)])
        pooled = graph.add(
            "RoiAlign",
            [graph.image(level), boxes, graph.add("Gather", [images, of_level])],
            coordinate_transformation_mode="output_half_pixel" if has_min_side else "half_pixel",
            mode="avg",
            sampling_ratio=layer.pooling.samples,
            spatial_scale=1.0 / stride[0],
            output_height=layer.side,
            output_width=layer.side,
        )
        features.append(pooled)
        places.append(of_level)
    order = graph.add("Concat", places, axis=0)
    back = graph.add("ScatterElements", [order, order, _numbers(graph, order)], axis=0)
    return [graph.as_image(graph.add("Gather", [graph.add("Concat", features, axis=0), back]))]


def detected(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """Add `DetectedRegions`; return boxes [B, D, 4], scores [B, D] and classes [B, D]."""
    logits, deltas, boxes, valid, sizes = map(graph.keras, inputs)
    suppression, count = layer.config, node.input_tensors[2].shape[1]
    classes = node.input_tensors[0].shape[-1] - 1
    probabilities = graph.add(
        "Slice", [graph.add("Softmax", [logits], axis=-1), np.array([1]), np.array([classes + 1]), np.array([1])]
    )
    probabilities = graph.add("Reshape", [probabilities, np.array([-1, count, classes])])
    exist = unsqueezed(graph, graph.add("Cast", [valid], to=TensorProto.FLOAT))
    pairs = graph.add("Reshape", [graph.add("Mul", [probabilities, exist]), np.array([0, -1])])
    candidates = min(suppression.candidates, count * classes)
    best, places = graph.add_several("TopK", [pairs, np.array([candidates])], 2)
    numbers, class_numbers = (
        graph.add("Div", [places, np.array(classes)]),
        graph.add("Mod", [places, np.array(classes)]),
    )
    own_deltas = graph.add("Reshape", [deltas, np.array([-1, count * (classes + 1), 4])])
    picked = graph.add(
        "Add", [graph.add("Mul", [numbers, np.array(classes + 1)]), graph.add("Add", [class_numbers, np.array(1)])]
    )
    own_deltas = entries(graph, own_deltas, picked)
    regions = entries(graph, boxes, numbers)
    decoded = suppression.box_coder.decode_in_onnx(graph, own_deltas, regions)
    decoded = clipped(graph, decoded, sizes, last_pixel=suppression.box_coder.last_pixel)
    scores = graph.add("Mul", [above(graph, best, suppression.score_threshold), is_large(graph, decoded, MIN_SIDE)])
    by_class = (
        spread_over_classes(graph, scores, class_numbers, classes=classes)
        if suppression.per_class
        else unsqueezed(graph, scores, axis=1)
    )
    is_selected = not_suppressed(graph, decoded, by_class, iou_threshold=suppression.iou_threshold)
    decoded, scores, [class_numbers] = best_of(
        graph,
        decoded,
        graph.add("Mul", [scores, is_selected]),
        [class_numbers],
        candidates=candidates,
        count=suppression.max_detections,
    )
    return list(in_slots(graph, decoded, scores, class_numbers))


def masks_of_classes(graph: OnnxGraph, layer, inputs: Sequence[str], node) -> list[str]:
    """Add `MasksOfClasses`; return probabilities [B, D, S, S] of the regions that `aligned` has selected."""
    logits, (scores, classes) = graph.image(inputs[0]), map(graph.keras, inputs[1:])
    count, side = node.outputs[0].shape[1:3]
    rows = _places(graph, graph.add("Greater", [flat(graph, scores), _NONE]))
    class_masks = graph.add("Gather", [flat(graph, graph.add("Cast", [classes], to=TensorProto.INT64)), rows])
    class_masks = graph.add(
        "GatherND", [logits, unsqueezed(graph, graph.add("Add", [class_masks, np.array(1)]))], batch_dims=1
    )
    shape = graph.add("Concat", [graph.add("Shape", [flat(graph, scores)]), np.array([side, side])], axis=0)
    empty = graph.add("ConstantOfShape", [shape])
    filled = graph.add("ScatterND", [empty, unsqueezed(graph, rows), graph.add("Sigmoid", [class_masks])])
    return [graph.add("Reshape", [filled, np.array([-1, count, side, side])])]


def _levels_of(graph: OnnxGraph, boxes: str, *, finest: int, count: int, slack: float) -> str:
    """Add `roi_align.region_levels` of boxes [R, 4]; return float32."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    area = graph.add("ReduceProd", [graph.add("Sub", [high, low]), np.array([1])], keepdims=0)
    ratio = graph.add("Div", [graph.add("Sqrt", [area]), np.float32(CANONICAL_SIDE)])
    octaves = graph.add("Div", [graph.add("Log", [ratio]), np.float32(math.log(2))])
    level = graph.add("Floor", [graph.add("Add", [octaves, np.float32(CANONICAL_LEVEL + slack)])])
    level = graph.add("Clip", [level, np.float32(finest), np.float32(finest + count - 1)])
    return graph.add("Sub", [level, np.float32(finest)])


def _places(graph: OnnxGraph, chosen: str) -> str:
    """Return the indices [n] int64 of the True values of [N] bool."""
    return flat(graph, graph.add("NonZero", [chosen]))


def _numbers(graph: OnnxGraph, rows: str) -> str:
    """Return 0 to N - 1 for N rows, int64."""
    count = graph.add("Squeeze", [graph.add("Slice", [graph.add("Shape", [rows]), np.array([0]), np.array([1])])])
    return graph.add("Range", [np.array(0), count, np.array(1)])
