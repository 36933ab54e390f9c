"""Gaussian suppression (soft-NMS) as a Loop of an ONNX graph: the algorithm of `tensor_suppression.py`.

Nodes on a few hundred numbers cost as much as their dispatch, so an iteration selects several boxes. Its work is
proportional to the boxes that it selects, not to those that it examines.
"""

from collections.abc import Sequence

import numpy as np

from object_detection.onnx_nodes import Graph, Input, LoopState, entries, unsqueezed
from object_detection.suppression.tensor_suppression import SuppressionConfig

EXAMINED = 16  # boxes per iteration
_NONE = np.float32(0)
_SMALLEST = np.float32(1e-30)  # area of an empty box, so that the union of two is not 0
_FEATURES = 6  # top, left, bottom, right, area, class


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

    chosen, chosen_scores, chosen_features = _selection(
        step, features, states["best"], states["places"], config=config, examined=examined
    )
    selected = step.add(
        "ScatterElements", [states["selected"], chosen, chosen_scores], axis=1, reduction="max"
    )  # an unused entry of an image has a score of 0
    squared = _squared_overlap(step, _parts(step, chosen_features), everywhere, config=config)  # [B, M, N]
    factors = step.add("Where", [step.add("Greater", [chosen_scores, _NONE]), np.float32(-1 / config.sigma), _NONE])
    products = step.add("MatMul", [unsqueezed(step, factors, axis=1), squared])
    exponents = step.add("Squeeze", [products, np.array([1])])
    remaining = step.add("Mul", [states["remaining"], step.add("Exp", [exponents])])
    remaining = step.add("Where", [step.add("Greater", [selected, _NONE]), _NONE, remaining])
    next_best, next_places = step.add_several("TopK", [remaining, np.array([examined])], 2)
    unfinished = _unfinished(step, selected, next_best, next_places, count=count, config=config)
    results = graph.loop(
        step,
        most=config.max_detections,
        states=[
            LoopState(states["remaining"], scores, remaining, "float32"),
            LoopState(states["selected"], graph.add("Mul", [scores, _NONE]), selected, "float32"),
            LoopState(states["best"], best, next_best, "float32"),
            LoopState(states["places"], places, next_places, "int64"),
        ],
        condition=unfinished,
    )
    return results[1]


def _features(graph: Graph, boxes: str, classes: str) -> str:
    """Add corners, area and class of boxes [B, N, 4] with classes [B, N]: [B, N, 6]."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    sides = graph.add("Max", [graph.add("Sub", [high, low]), _NONE])
    areas = graph.add("Max", [graph.add("ReduceProd", [sides, np.array([2])], keepdims=1), _SMALLEST])
    return graph.add("Concat", [boxes, areas, unsqueezed(graph, graph.cast(classes, "float32"))], axis=2)


def _parts(graph: Graph, features: str) -> list[str]:
    return graph.add_several("Split", [features], _FEATURES, axis=2, num_outputs=_FEATURES)


def _selection(
    step: Graph, features: str, best: str, places: str, *, config: SuppressionConfig, examined: int
) -> tuple[str, str, str]:
    """Add the boxes that no better one overlaps, of the best [B, L]: indices [B, M], scores and features [B, M, 6].

    M is the largest number of an image; others have entries with a score of 0.
    """
    rows = entries(step, features, places)  # [B, L, 6]
    across = step.add_several(
        "Split", [step.add("Transpose", [rows], perm=[0, 2, 1])], _FEATURES, axis=1, num_outputs=_FEATURES
    )
    ours = _parts(step, rows)
    better: Input = np.tril(np.ones((examined, examined), bool), -1)
    if config.per_class:
        better = step.add("And", [step.add("Equal", [ours[5], across[5]]), better])
    shared = step.add("Where", [better, _shared(step, ours, across), _NONE])  # [B, L, L]
    covered = step.add("Greater", [step.add("ReduceMax", [shared, np.array([2])], keepdims=0), _NONE])
    rejected = step.add("Or", [covered, step.add("LessOrEqual", [best, np.float32(config.score_threshold)])])
    scores = step.add("Where", [rejected, _NONE, best])
    scores, order = step.add_several("TopK", [scores, np.array([examined])], 2)
    counts = step.add("ReduceSum", [step.cast(step.add("Greater", [scores, _NONE]), "int64"), np.array([1])])  # [B, 1]
    most = step.add("ReduceMax", [counts, np.array([0])], keepdims=0)
    scores, order = (step.add("Slice", [part, np.array([0]), most, np.array([1])]) for part in (scores, order))
    return entries(step, places, order), scores, entries(step, rows, order)


def _squared_overlap(graph: Graph, ours: Sequence[str], others: Sequence[str], *, config: SuppressionConfig) -> str:
    """Add the squared IoU of boxes with features [B, M, 1] and [B, 1, N]: [B, M, N], 0 between different classes."""
    shared = _shared(graph, ours, others)
    union = graph.add("Sub", [graph.add("Add", [ours[4], others[4]]), shared])
    overlap = graph.add("Div", [shared, union])
    squared = graph.add("Mul", [overlap, overlap])
    if not config.per_class:
        return squared
    return graph.add("Where", [graph.add("Equal", [ours[5], others[5]]), squared, _NONE])


def _shared(graph: Graph, ours: Sequence[str], others: Sequence[str]) -> str:
    """Add the intersection of boxes with features [B, M, 1] and [B, 1, N]: [B, M, N]."""
    top, left = (graph.add("Max", [ours[corner], others[corner]]) for corner in (0, 1))
    bottom, right = (graph.add("Min", [ours[corner], others[corner]]) for corner in (2, 3))
    height, width = (graph.add("Relu", [graph.add("Sub", [*ends])]) for ends in ((bottom, top), (right, left)))
    return graph.add("Mul", [height, width])


def _unfinished(step: Graph, selected: str, best: str, places: str, *, count: int, config: SuppressionConfig) -> str:
    """Add a test whether an image has a remaining box that could be among its detections.

    It could not if enough selected boxes come before it: with a higher score, or the same and a smaller index.
    """
    ends = np.array([0]), np.array([1]), np.array([1])
    score, place = (step.add("Slice", [part, *ends]) for part in (best, places))  # [B, 1]
    earlier = step.add("Less", [np.arange(count)[None], place])
    equal = step.add("And", [step.add("Equal", [selected, score]), earlier])
    is_ahead = step.add("Or", [step.add("Greater", [selected, score]), equal])
    counts = step.add("ReduceSum", [step.cast(is_ahead, "float32"), np.array([1])])
    unfinished = step.add(
        "And",
        [
            step.add("Less", [counts, np.float32(config.max_detections)]),
            step.add("Greater", [score, np.float32(config.score_threshold)]),
        ],
    )
    return step.cast(step.add("ReduceMax", [step.cast(unfinished, "int64")], keepdims=0), "bool")
