"""Post-processing of dense outputs (`tensor_suppression.py`) as nodes of an ONNX graph.

Hard suppression is ONNX's NonMaxSuppression. Gaussian suppression (soft-NMS), which changes scores, is a Loop. Nodes
on a few hundred numbers cost as much as their dispatch, so an iteration selects several boxes.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from object_detection.onnx_nodes import (
    Graph,
    LoopState,
    above,
    best_of,
    bounded,
    clipped,
    entries,
    in_slots,
    not_suppressed,
    spread_over_classes,
    unsqueezed,
)
from object_detection.suppression.tensor_suppression import (
    LOWEST,
    SuppressionConfig,
    checked_level_sizes,
)

EXAMINED = 16  # boxes per iteration
# Of the first attempts: 100 detections took 500 to 1,300 with inputs of 128 to 224 pixels, else 1,500 to 3,800
FIRST_CANDIDATES: Sequence[int] = (1280, 2048)
_NONE = np.float32(0)
_SMALLEST = np.float32(1e-30)  # area of an empty box, so that the union of two is not 0
_FEATURES = 6  # top, left, bottom, right, area, class


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
    network = _Network(values, deltas, sizes, graph.add("Identity", [anchors]), len(anchors), classes, level_sizes)
    first = FIRST_CANDIDATES if config.method == "gaussian" else ()
    return _attempts(
        graph, network, config, [*(count for count in first if count < config.candidates), config.candidates]
    )


class _Network(NamedTuple):
    """Outputs of the network, and its anchors."""

    values: str  # [B, A, K] in the order of the scores
    deltas: str  # [B, A, 4]
    sizes: str  # [B, 2]
    anchors: str  # [A, 4]
    num_anchors: int
    num_classes: int
    level_sizes: Sequence[int] | None


class _Found(NamedTuple):
    """Detections in a number of candidates."""

    tensors: tuple[str, str, str]  # boxes, scores, classes
    candidates: int
    candidate_scores: str  # [B, candidates], 0 unless above the threshold


def _attempts(
    graph: Graph, network: "_Network", config: SuppressionConfig, counts: Sequence[int]
) -> tuple[str, str, str]:
    """Add detections in the first of these numbers of candidates that suffices, else in the last."""
    count, *more = counts
    attempt = _detections(graph, network, replace(config, candidates=count))
    if not more or attempt.candidates < count:
        return attempt.tensors
    others = graph.inner(f"beyond_{count}")
    boxes, scores, classes = graph.choose(
        _complete(graph, attempt), attempt.tensors, others, _attempts(others, network, config, more)
    )
    return boxes, scores, classes


def _complete(graph: Graph, first_attempt: _Found) -> str:
    """Add a test, bool [], whether all images have the detections that further candidates would give.

    Scores only decrease, so a candidate with a lower score than the last detection cannot precede it.
    """
    last = np.array([-1]), np.array([2**31 - 1]), np.array([1])
    detected, candidate = (
        graph.add("Slice", [part, *last]) for part in (first_attempt.tensors[1], first_attempt.candidate_scores)
    )
    complete = graph.cast(graph.add("GreaterOrEqual", [detected, candidate]), "int32")
    return graph.cast(graph.add("ReduceMin", [complete], keepdims=0), "bool")


def _detections(graph: Graph, network: _Network, config: SuppressionConfig) -> _Found:
    """Add candidates, decoding and suppression."""
    best, numbers, own, count = _candidates(graph, network, config)
    scores = graph.add("Sigmoid" if config.scores == "sigmoid" else "Exp", [best])
    boxes = config.box_coder.decode_in_onnx(
        graph, entries(graph, network.deltas, numbers), graph.add("Gather", [network.anchors, numbers])
    )
    boxes, is_bounded = bounded(graph, boxes, network.sizes)
    if config.clip:
        boxes = clipped(graph, boxes, network.sizes)
    candidate_scores = above(graph, scores, config.score_threshold)
    scores = graph.add("Where", [is_bounded, candidate_scores, np.float32(0)])
    if config.method == "gaussian":
        scores = softly_suppressed(graph, boxes, scores, own, config=config, count=count)
    elif config.method == "hard":
        by_class = (
            spread_over_classes(graph, scores, own, classes=network.num_classes)
            if config.per_class
            else unsqueezed(graph, scores, axis=1)
        )
        scores = graph.add("Mul", [scores, not_suppressed(graph, boxes, by_class, iou_threshold=config.iou_threshold)])
    boxes, scores, [own] = best_of(graph, boxes, scores, [own], candidates=count, count=config.max_detections)
    slots = in_slots(graph, clipped(graph, boxes, network.sizes), scores, own)
    return _Found(slots, count, candidate_scores)


def _candidates(graph: Graph, network: _Network, config: SuppressionConfig) -> tuple[str, str, str, int]:
    """Add `top_candidates`, up to the order of ties: values, anchors and classes [B, N], and N.

    The first candidates are the same for any number of candidates.
    """
    values, anchors, classes = network.values, network.num_anchors, network.num_classes
    if config.candidates_per_class is not None:
        each = min(config.candidates_per_class, anchors)
        by_class = graph.add("Transpose", [_sortable(graph, values)], perm=[0, 2, 1])
        top = graph.add_several("TopK", [by_class, np.array([each])], 2)
        best, numbers = (graph.add("Reshape", [part, np.array([0, -1])]) for part in top)  # [B, K each]
        count = min(config.candidates, classes * each)
        best, places = graph.add_several("TopK", [best, np.array([count])], 2)
        numbers = entries(graph, numbers, places)
        return best, numbers, graph.add("Div", [places, np.array(each)]), count
    if config.candidates_per_level is None:
        return _top(graph, values, config.candidates, anchors=anchors, classes=classes)
    levels, first = [], 0
    for size in checked_level_sizes(network.level_sizes, anchors):
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
    anchor_count = min(count, anchors)
    if 2 * anchor_count > anchors:  # few would be left out
        count = min(count, anchors * classes)
        flat = graph.add("Reshape", [_sortable(graph, values), np.array([0, -1])])
        best, places = graph.add_several("TopK", [flat, np.array([count])], 2)
        numbers, of_class = (graph.add(operation, [places, np.array(classes)]) for operation in ("Div", "Mod"))
        return best, numbers, of_class, count
    highest = _sortable(graph, graph.add("ReduceMax", [values, np.array([2])], keepdims=0))
    _, numbers = graph.add_several("TopK", [highest, np.array([anchor_count])], 2)
    of_anchors = _sortable(graph, entries(graph, values, numbers))  # [B, kept, K]
    count = min(count, anchor_count * classes)
    best, places = graph.add_several(
        "TopK", [graph.add("Reshape", [of_anchors, np.array([0, -1])]), np.array([count])], 2
    )
    rows = graph.add("Div", [places, np.array(classes)])
    return (best, entries(graph, numbers, rows), graph.add("Mod", [places, np.array(classes)]), count)


def _sortable(graph: Graph, values: str) -> str:
    """Add a replacement of NaN, for which a sorted order is undefined, by the lowest score."""
    return graph.add("Where", [graph.add("IsNaN", [values]), np.float32(LOWEST), values])


def softly_suppressed(
    graph: Graph, boxes: str, scores: str, classes: str, *, config: SuppressionConfig, count: int
) -> str:
    """Add soft-NMS and return the score of each box when it is selected, [B, N], 0 for boxes not selected.

    The `config.max_detections` highest are the detections, ties by index; others may have a score too.

    Args:
        graph: receives the nodes.
        boxes: [B, N, 4], for the IoU.
        scores: [B, N], descending; 0 for boxes to leave out.
        classes: [B, N].
        config: post-processing settings.
        count: N.
    """
    features = _features(graph, boxes, classes)  # [B, N, 6]
    columns = graph.add("Transpose", [features], perm=[0, 2, 1])
    everywhere = graph.add_several("Split", [columns], _FEATURES, axis=1, num_outputs=_FEATURES)  # [B, 1, N] each
    examined = min(EXAMINED, count)
    best, places = graph.add_several("TopK", [scores, np.array([examined])], 2)
    step = graph.inner(f"select_{count}")
    states = {name: f"select_{count}.{name}" for name in ("remaining", "selected", "best", "places")}

    rows = entries(step, features, states["places"])  # [B, L, 6]
    rows = step.add_several("Split", [rows], _FEATURES, axis=2, num_outputs=_FEATURES)
    squared = _squared_overlap(step, rows, everywhere, config=config)  # [B, L, N]
    is_selected = _uncovered(step, squared, states["best"], states["places"], config=config, examined=examined)
    chosen_scores = step.add("Where", [is_selected, states["best"], _NONE])
    selected = step.add(
        "ScatterElements", [states["selected"], states["places"], chosen_scores], axis=1, reduction="max"
    )
    factors = step.add("Where", [is_selected, np.float32(-1 / config.sigma), _NONE])
    products = step.add("MatMul", [unsqueezed(step, factors, axis=1), squared])
    exponents = step.add("Squeeze", [products, np.array([1])])
    remaining = step.add("Mul", [states["remaining"], step.add("Exp", [exponents])])
    remaining = step.add("Where", [step.add("Greater", [selected, _NONE]), _NONE, remaining])
    next_best, next_places = step.add_several("TopK", [remaining, np.array([examined])], 2)
    results = graph.loop(
        step,
        most=config.max_detections,
        states=[
            LoopState(states["remaining"], scores, remaining, "float32"),
            LoopState(states["selected"], graph.add("Mul", [scores, _NONE]), selected, "float32"),
            LoopState(states["best"], best, next_best, "float32"),
            LoopState(states["places"], places, next_places, "int64"),
        ],
        condition=_unfinished(step, selected, next_best, config=config),
    )
    return results[1]


def _features(graph: Graph, boxes: str, classes: str) -> str:
    """Add corners, area and class of boxes [B, N, 4] with classes [B, N]: [B, N, 6]."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    sides = graph.add("Max", [graph.add("Sub", [high, low]), _NONE])
    areas = graph.add("Max", [graph.add("ReduceProd", [sides, np.array([2])], keepdims=1), _SMALLEST])
    return graph.add("Concat", [boxes, areas, unsqueezed(graph, graph.cast(classes, "float32"))], axis=2)


def _squared_overlap(graph: Graph, ours: Sequence[str], others: Sequence[str], *, config: SuppressionConfig) -> str:
    """Add the squared IoU of boxes with features [B, L, 1] and [B, 1, N]: [B, L, N], 0 between different classes."""
    top, left = (graph.add("Max", [ours[corner], others[corner]]) for corner in (0, 1))
    bottom, right = (graph.add("Min", [ours[corner], others[corner]]) for corner in (2, 3))
    height, width = (graph.add("Relu", [graph.add("Sub", [*ends])]) for ends in ((bottom, top), (right, left)))
    shared = graph.add("Mul", [height, width])
    union = graph.add("Sub", [graph.add("Add", [ours[4], others[4]]), shared])
    overlap = graph.add("Div", [shared, union])
    squared = graph.add("Mul", [overlap, overlap])
    if not config.per_class:
        return squared
    return graph.add("Where", [graph.add("Equal", [ours[5], others[5]]), squared, _NONE])


def _uncovered(step: Graph, squared: str, best: str, places: str, *, config: SuppressionConfig, examined: int) -> str:
    """Add a test which of the best boxes [B, L] are above the threshold and overlapped by no better one: [B, L]."""
    columns = step.add("Expand", [unsqueezed(step, places, axis=1), np.array([1, examined, 1])])
    between = step.add("GatherElements", [squared, columns], axis=2)  # [B, L, L]
    between = step.add("Mul", [between, np.triu(np.ones((examined, examined), np.float32), 1)])
    covered = step.add("ReduceMax", [between, np.array([1])], keepdims=0)
    is_high = step.add("Greater", [best, np.float32(config.score_threshold)])
    return step.add("And", [is_high, step.add("LessOrEqual", [covered, _NONE])])


def _unfinished(step: Graph, selected: str, best: str, *, config: SuppressionConfig) -> str:
    """Add a test whether an image has a remaining box that could be among its detections.

    It could not if enough boxes with a higher score are selected.
    """
    score = step.add("Slice", [best, np.array([0]), np.array([1]), np.array([1])])  # [B, 1]
    is_ahead = step.cast(step.add("Greater", [selected, score]), "float32")
    is_open = step.add("Less", [step.add("ReduceSum", [is_ahead, np.array([1])]), np.float32(config.max_detections)])
    highest = step.add("ReduceMax", [step.add("Where", [is_open, score, _NONE])], keepdims=0)
    return step.add("Greater", [highest, np.float32(config.score_threshold)])
