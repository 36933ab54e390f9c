"""Steps of post-processing as nodes of an ONNX graph: clipping, NonMaxSuppression, top-k of boxes.

A tensor is referred to by its name. The graph is `efficientdet.plugins.onnx.graph.OnnxGraph`; this module does not
import ONNX.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from object_detection.geometry.box_geometry import LARGEST_COORDINATE

Input = str | np.ndarray | np.generic  # tensor, or values of a constant


class Output(NamedTuple):
    """An output of an exported file."""

    tensor: str  # name in the graph
    dtype: str  # NumPy name
    shape: tuple[int | None, ...]  # the batch axis is left out


class LoopState(NamedTuple):
    """A tensor that each run of a loop changes."""

    name: str  # the name inside the body
    start: str  # tensor of the outer graph
    next: str  # tensor of the body
    dtype: str  # NumPy name


Graph = Any  # `OnnxGraph`


_NONE = np.float32(0)


def clipped(graph: Graph, boxes: str, sizes: str) -> str:
    """Add `clip_boxes` of [B, N, 4] to images of sizes [B, 2]."""
    limits = graph.cast(sizes, "float32")
    limits = unsqueezed(graph, graph.add("Concat", [limits, limits], axis=1), axis=1)
    return graph.add("Min", [graph.add("Max", [boxes, _NONE]), limits])


def bounded(graph: Graph, boxes: str, sizes: str) -> tuple[str, str]:
    """Add `has_area` of boxes [B, N, 4] in images of sizes [B, 2].

    Returns:
        The boxes with finite coordinates, 0 where they have no area; whether they have one, [B, N] bool.
    """
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    limits = graph.cast(sizes, "float32")
    inside = graph.add("Less", [low, unsqueezed(graph, limits, axis=1)])
    inside = graph.add("And", [inside, graph.add("Greater", [high, _NONE])])
    inside = graph.cast(graph.add("And", [inside, graph.add("Less", [low, high])]), "int32")
    inside = graph.cast(graph.add("ReduceMin", [inside, np.array([2])], keepdims=0), "bool")
    limited = graph.add("Clip", [boxes, np.float32(-LARGEST_COORDINATE), np.float32(LARGEST_COORDINATE)])
    return graph.add("Where", [unsqueezed(graph, inside), limited, _NONE]), inside


def is_large(graph: Graph, boxes: str, min_side: float) -> str:
    """Add a test whether both sides of boxes [B, N, 4] reach `min_side`: [B, N] float32, 1 or 0."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    shorter = graph.add("ReduceMin", [graph.add("Sub", [high, low]), np.array([2])], keepdims=0)
    return graph.cast(graph.add("GreaterOrEqual", [shorter, np.float32(min_side)]), "float32")


def spread_over_classes(graph: Graph, scores: str, numbers: str, *, classes: int) -> str:
    """Add scores per class [B, K, N] of boxes with scores [B, N] and classes `numbers` [B, N]; 0 for other classes."""
    is_class = graph.add("Equal", [unsqueezed(graph, numbers, axis=1), np.arange(classes)[:, None]])
    return graph.add("Mul", [graph.cast(is_class, "float32"), unsqueezed(graph, scores, axis=1)])


def not_suppressed(graph: Graph, boxes: str, scores: str, *, iou_threshold: float) -> str:
    """Add NonMaxSuppression per class of boxes [B, N, 4] with scores [B, C, N] above 0.

    The result [B, N] is 1 for boxes that remain.
    """
    chosen = graph.add(
        "NonMaxSuppression",
        [
            boxes,
            scores,
            np.array([2**31 - 1]),
            np.array([iou_threshold], np.float32),
            np.array([0.0], np.float32),
        ],
    )
    places = graph.add("Gather", [chosen, np.array([0, 2])], axis=1)
    # The shape is taken from the chosen boxes, so that a runtime with static shape inference finds it consistent
    ones = graph.cast(graph.add("Gather", [chosen, np.array(0)], axis=1), "float32")
    ones = graph.add("Add", [graph.add("Mul", [ones, _NONE]), np.float32(1)])
    shape = graph.add("Gather", [graph.add("Shape", [scores]), np.array([0, 2])])
    return graph.add("ScatterND", [graph.add("ConstantOfShape", [shape]), places, ones])


def best_of(
    graph: Graph, boxes: str, scores: str, others: Sequence[str], *, candidates: int, count: int
) -> tuple[str, str, list[str]]:
    """Add the `count` boxes [B, N, 4] with the highest scores [B, N], best first, and their entries of `others` [B, N].

    Padded with zeros if N, which is `candidates`, is less than `count`.
    """
    best, places = graph.add_several("TopK", [scores, np.array([min(count, candidates)])], 2)
    picked = [entries(graph, values, places) for values in (boxes, *others)]
    if candidates < count:
        best, *picked = (
            graph.add("Pad", [values, np.array([0] * (rank + 1) + [count - candidates] + [0] * (rank - 2))])
            for values, rank in zip((best, *picked), (2, 3, *[2] * len(others)), strict=True)
        )
    return picked[0], best, picked[1:]


def in_slots(graph: Graph, boxes: str, scores: str, classes: str) -> tuple[str, str, str]:
    """Add boxes [B, D, 4], scores [B, D] and classes [B, D] as int32, with zeros where the score is 0."""
    exist = graph.add("Greater", [scores, _NONE])
    boxes = graph.add("Where", [unsqueezed(graph, exist), boxes, _NONE])
    classes = graph.add("Where", [exist, classes, np.array(0)])
    return boxes, scores, graph.cast(classes, "int32")


def above(graph: Graph, scores: str, threshold: float) -> str:
    """Add scores that are 0 unless above the threshold."""
    return graph.add("Where", [graph.add("Greater", [scores, np.float32(threshold)]), scores, _NONE])


def entries(graph: Graph, values: str, numbers: str) -> str:
    """Add `object_detection.gather` of [B, N, ...] and [B, M]: [B, M, ...]."""
    return graph.add("GatherND", [values, unsqueezed(graph, numbers)], batch_dims=1)


def flat(graph: Graph, tensor: str) -> str:
    """Add a reshape to [N]."""
    return graph.add("Reshape", [tensor, np.array([-1])])


def unsqueezed(graph: Graph, tensor: str, *, axis: int = -1) -> str:
    """Add a further axis of length 1."""
    return graph.add("Unsqueeze", [tensor, np.array([axis])])
