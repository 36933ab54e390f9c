"""Post-processing of dense outputs (`tensor_suppression.py`) as nodes of an ONNX graph.

Hard suppression is ONNX's NonMaxSuppression. Gaussian suppression, which changes scores after each selection, is a Loop
that selects one box per iteration.
"""

from collections.abc import Sequence

import numpy as np

from object_detection.onnx_nodes import (
    Graph,
    above,
    best_of,
    clipped,
    entries,
    in_slots,
    not_suppressed,
    spread_over_classes,
    unsqueezed,
)
from object_detection.suppression.tensor_suppression import SuppressionConfig, checked_level_sizes

_NONE = np.float32(0)


def detections_in_onnx(
    graph: Graph,
    logits: str,
    deltas: str,
    sizes: str,
    *,
    anchors: np.ndarray,
    classes: int,
    config: SuppressionConfig,
    level_sizes: Sequence[int] | None = None,
) -> tuple[str, str, str]:
    """Add the operations of `detections_from_outputs`, and clipping to the images.

    Args:
        graph: receives the nodes.
        logits: [B, A, K] with K = `classes`.
        deltas: [B, A, 4].
        sizes: [B, 2] int32, height and width of the images.
        anchors: [A, 4] float32.
        classes: number of logits per anchor, including the background.
        config: post-processing settings.
        level_sizes: see `top_candidates`.

    Returns:
        boxes [B, D, 4] yxyx pixels of the input, best first; scores [B, D], 0 for an empty slot; classes [B, D] int32.
    """
    values = logits
    if config.scores == "softmax":
        values = graph.add(
            "Slice", [graph.add("LogSoftmax", [logits], axis=-1), np.array([1]), np.array([classes]), np.array([2])]
        )
        classes -= 1
    best, numbers, own, count = _candidates(
        graph, values, config, anchors=len(anchors), classes=classes, level_sizes=level_sizes
    )
    scores = graph.add("Sigmoid" if config.scores == "sigmoid" else "Exp", [best])
    boxes = config.box_coder.decode_in_onnx(
        graph, entries(graph, deltas, numbers), graph.add("Gather", [anchors, numbers])
    )
    if config.clip:
        boxes = clipped(graph, boxes, sizes, last_pixel=config.box_coder.last_pixel)
    scores = above(graph, scores, config.score_threshold)
    measured = boxes
    if config.iou_pixel_offset:
        measured = graph.add(
            "Add", [boxes, np.array([0, 0, config.iou_pixel_offset, config.iou_pixel_offset], np.float32)]
        )
    if config.method == "gaussian":
        scores, places = _softly_suppressed(graph, measured, scores, own, config=config, count=count)
        boxes = entries(graph, boxes, places)
        own = entries(graph, own, places)
    else:
        if config.method == "hard":
            by_class = (
                spread_over_classes(graph, scores, own, classes=classes)
                if config.per_class
                else unsqueezed(graph, scores, axis=1)
            )
            scores = graph.add(
                "Mul", [scores, not_suppressed(graph, measured, by_class, iou_threshold=config.iou_threshold)]
            )
        boxes, scores, [own] = best_of(graph, boxes, scores, [own], candidates=count, count=config.max_detections)
    return in_slots(graph, clipped(graph, boxes, sizes, last_pixel=False), scores, own)


def _candidates(
    graph: Graph,
    values: str,
    config: SuppressionConfig,
    *,
    anchors: int,
    classes: int,
    level_sizes: Sequence[int] | None,
) -> tuple[str, str, str, int]:
    """Add `top_candidates` of values [B, A, K], up to the order of ties: values, anchors and classes [B, N], and N."""
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
    for size in checked_level_sizes(level_sizes, anchors):
        own = graph.add("Slice", [values, np.array([first]), np.array([first + size]), np.array([1])])
        best, numbers, of_class, count = _top(graph, own, config.candidates_per_level, anchors=size, classes=classes)
        levels.append((best, graph.add("Add", [numbers, np.array(first)]), of_class, count))
        first += size
    best, numbers, own = (graph.add("Concat", list(parts), axis=1) for parts in list(zip(*levels, strict=True))[:3])
    count = min(config.candidates, sum(level[3] for level in levels))
    best, places = graph.add_several("TopK", [best, np.array([count])], 2)
    numbers, own = (entries(graph, part, places) for part in (numbers, own))
    return best, numbers, own, count


def _top(graph: Graph, values: str, count: int, *, anchors: int, classes: int) -> tuple[str, str, str, int]:
    """Add the `count` highest of [B, A, K], among the anchors with the highest best class."""
    kept = min(count, anchors)
    _, numbers = graph.add_several(
        "TopK", [graph.add("ReduceMax", [values, np.array([2])], keepdims=0), np.array([kept])], 2
    )
    own = entries(graph, values, numbers)  # [B, kept, K]
    count = min(count, kept * classes)
    best, places = graph.add_several("TopK", [graph.add("Reshape", [own, np.array([0, -1])]), np.array([count])], 2)
    rows = graph.add("Div", [places, np.array(classes)])
    return (best, entries(graph, numbers, rows), graph.add("Mod", [places, np.array(classes)]), count)


def _softly_suppressed(
    graph: Graph, boxes: str, scores: str, numbers: str, *, config: SuppressionConfig, count: int
) -> tuple[str, str]:
    """Add soft-NMS of boxes [B, N, 4] with scores [B, N] and classes [B, N]: scores and indices [B, D] as selected."""
    step = graph.inner("pick")
    remaining = "pick.remaining"
    best_score = step.add("ReduceMax", [remaining, np.array([1])], keepdims=1)
    best = step.add("ArgMax", [remaining], axis=1, keepdims=1)  # [B, 1]
    box = entries(step, boxes, best)  # [B, 1, 4]
    overlap = _overlap(step, box, boxes)
    squared = step.add("Mul", [overlap, overlap])
    survival = step.add("Exp", [step.add("Mul", [squared, np.float32(-1 / config.sigma)])])
    if config.per_class:
        own = entries(step, numbers, best)
        survival = step.add("Where", [step.add("Equal", [numbers, own]), survival, np.float32(1)])
    left = step.add("Mul", [remaining, survival])
    left = step.add("Where", [step.add("Equal", [np.arange(count)[None], best]), _NONE, left])
    left = above(step, left, config.score_threshold)
    found, places = graph.loop(
        step,
        scores,
        times=config.max_detections,
        state=remaining,
        next_state=left,
        scanned={best_score: "float32", best: "int64"},
    )
    found, places = (
        graph.add("Transpose", [graph.add("Squeeze", [part, np.array([2])])], perm=[1, 0]) for part in (found, places)
    )
    return found, places


def _overlap(graph: Graph, box: str, boxes: str) -> str:
    """Append nodes that compute the IoU of one box [B, 1, 4] with boxes [B, N, 4]: [B, N], 0 if one is empty."""
    low, high = graph.add_several("Split", [box], 2, axis=-1, num_outputs=2)
    lows, highs = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)

    def area(low: str, high: str) -> str:
        return graph.add(
            "ReduceProd", [graph.add("Max", [graph.add("Sub", [high, low]), _NONE]), np.array([2])], keepdims=0
        )

    shared = area(graph.add("Max", [low, lows]), graph.add("Min", [high, highs]))
    union = graph.add("Sub", [graph.add("Add", [area(low, high), area(lows, highs)]), shared])
    return graph.add("Div", [shared, graph.add("Max", [union, np.float32(1e-30)])])
