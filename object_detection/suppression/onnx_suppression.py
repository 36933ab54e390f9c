"""Post-processing of dense outputs (`tensor_suppression.py`) as nodes of an ONNX graph.

Hard suppression is ONNX's NonMaxSuppression; Gaussian suppression, which changes scores, is in `onnx_soft_nms.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from object_detection.onnx_nodes import (
    Graph,
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
from object_detection.suppression.onnx_soft_nms import softly_suppressed
from object_detection.suppression.tensor_suppression import (
    FIRST_CANDIDATES,
    LOWEST,
    SuppressionConfig,
    checked_level_sizes,
)


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
    if config.method != "gaussian" or config.candidates <= FIRST_CANDIDATES:
        return _detections(graph, network, config).tensors
    first_attempt = _detections(graph, network, replace(config, candidates=FIRST_CANDIDATES))
    if first_attempt.candidates < FIRST_CANDIDATES:
        return first_attempt.tensors
    all_candidates = graph.inner("all")
    others = _detections(all_candidates, network, config)
    boxes, scores, class_numbers = graph.choose(
        _complete(graph, first_attempt), first_attempt.tensors, all_candidates, others.tensors
    )
    return boxes, scores, class_numbers


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
    boxes, is_bounded = bounded(graph, boxes, network.sizes, last_pixel=config.box_coder.last_pixel)
    if config.clip:
        boxes = clipped(graph, boxes, network.sizes, last_pixel=config.box_coder.last_pixel)
    candidate_scores = above(graph, scores, config.score_threshold)
    scores = graph.add("Where", [is_bounded, candidate_scores, np.float32(0)])
    measured = boxes
    if config.iou_pixel_offset:
        measured = graph.add(
            "Add", [boxes, np.array([0, 0, config.iou_pixel_offset, config.iou_pixel_offset], np.float32)]
        )
    if config.method == "gaussian":
        scores = softly_suppressed(graph, measured, scores, own, config=config, count=count)
    elif config.method == "hard":
        by_class = (
            spread_over_classes(graph, scores, own, classes=network.num_classes)
            if config.per_class
            else unsqueezed(graph, scores, axis=1)
        )
        scores = graph.add(
            "Mul", [scores, not_suppressed(graph, measured, by_class, iou_threshold=config.iou_threshold)]
        )
    boxes, scores, [own] = best_of(graph, boxes, scores, [own], candidates=count, count=config.max_detections)
    slots = in_slots(graph, clipped(graph, boxes, network.sizes, last_pixel=False), scores, own)
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
