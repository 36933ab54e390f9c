"""Layers between the parts of a two-stage network: proposals, features of regions, detections.

They have no weights, and only the features of regions have a gradient. `add_to_onnx` adds a layer to an ONNX graph by
ONNX's NonMaxSuppression and RoiAlign; there the number of regions is dynamic, while Keras pads to a fixed number, and
masks are computed only for detections.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import KerasTensor, ops

from efficientdet.plugins.mask_rcnn.regions import (
    MIN_SIDE,
    ProposalConfig,
    greedy_nms,
    proposal_slots,
    region_detections,
    region_proposals,
)
from efficientdet.plugins.mask_rcnn.roi_align import (
    CANONICAL_LEVEL,
    CANONICAL_SIDE,
    LEVEL_SLACK,
    SAMPLES,
    features_of_regions,
    gathered_sums,
    level_strides,
)
from efficientdet.plugins.mask_rcnn.sampled_regions import of_classes
from model import tensorflow_cpu
from object_detection.geometry.anchor_grid import AnchorGrid
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
from object_detection.structures import Tensor
from object_detection.suppression.tensor_suppression import SuppressionConfig

_X_FIRST = np.array([1, 0, 3, 2])
_NONE = np.float32(0)


class Proposals(keras.layers.Layer):
    """Logits [B, A], deltas [B, A, 4], sizes [B, 2] -> boxes [B, P, 4] and which are proposals, [B, P] bool."""

    def __init__(self, grid: AnchorGrid, config: ProposalConfig, **kwargs: Any):
        super().__init__(dtype="float32", **kwargs)
        self.grid, self.config = grid, config

    def call(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return boxes and their validity, see the class."""
        logits, deltas, sizes = inputs
        boxes, _, valid = region_proposals(
            logits,
            deltas,
            ops.convert_to_tensor(self.grid.boxes),
            self.grid.level_sizes,
            ops.cast(sizes, "int32"),
            self.config,
            nms=nms(),
        )
        return boxes, valid

    def compute_output_spec(self, inputs: Sequence[KerasTensor]) -> tuple[KerasTensor, KerasTensor]:
        """Return the specs of `call`'s outputs, which not every backend infers if the batch size is unknown."""
        slots = proposal_slots(self.grid.level_sizes, self.config)
        return KerasTensor((None, slots, 4), "float32"), KerasTensor((None, slots), "bool")

    def add_to_onnx(self, graph: Any, inputs: Sequence[str], node: Any) -> list[str]:
        """Add the layer; return boxes [B, P, 4] and their validity."""
        logits, deltas, sizes = map(graph.keras, inputs)
        grid, config = self.grid, self.config
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
        boxes = clipped(graph, boxes, sizes)
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


class AlignedRegions(keras.layers.Layer):
    """Levels [B, h, w, C] and boxes [B, N, 4] -> features [B N, side, side, C] of the regions (RoIAlign).

    With scores [B, N] as a further input, only regions whose score is above 0 are returned, if the number of regions
    may depend on values; in compiled programs always all.
    """

    def __init__(self, side: int, image_size: tuple[int, int], **kwargs: Any):
        super().__init__(**kwargs)
        self.side, self.image_size = side, image_size

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the features of regions, see the class."""
        has_scores = len(inputs[-1].shape) == 2
        *levels, boxes = inputs[:-1] if has_scores else inputs
        count = boxes.shape[1]
        rows = regions_to_compute(inputs[-1] > 0.0 if has_scores else ops.ones_like(boxes[..., 0], dtype="bool"))
        regions = ops.take(ops.reshape(boxes, (-1, 4)), rows, axis=0)
        return features_of_regions(
            levels,
            ops.cast(regions, "float32"),
            rows // count,
            size=self.side,
            image_size=self.image_size,
            weighted_sums=weighted_sums(),
        )

    def compute_output_spec(self, inputs: Sequence[KerasTensor]) -> KerasTensor:
        """Return the spec of `call`'s output."""
        return KerasTensor((None, self.side, self.side, inputs[0].shape[-1]), inputs[0].dtype)

    def add_to_onnx(self, graph: Any, inputs: Sequence[str], node: Any) -> list[str]:
        """Add the layer; return features of all regions, or of those with a score above 0."""
        has_scores = len(node.input_tensors[-1].shape) == 2
        *levels, boxes = inputs[:-1] if has_scores else inputs
        count = node.input_tensors[len(levels)].shape[1]
        boxes = graph.add("Reshape", [graph.keras(boxes), np.array([-1, 4])])
        if has_scores:
            rows = _places_in_onnx(graph, graph.add("Greater", [flat(graph, graph.keras(inputs[-1])), _NONE]))
            boxes = graph.add("Gather", [boxes, rows])
        else:
            rows = _numbers_in_onnx(graph, boxes)
        images = graph.add("Div", [rows, np.array(count)])
        regions = graph.add("Gather", [boxes, _X_FIRST], axis=1)
        strides = level_strides([tensor.shape[1:3] for tensor in node.input_tensors[: len(levels)]], self.image_size)
        chosen = _levels_in_onnx(graph, boxes, finest=round(math.log2(strides[0][0])), count=len(levels))
        features, places = [], []
        for number, (level, stride) in enumerate(zip(levels, strides, strict=True)):
            of_level = _places_in_onnx(graph, graph.add("Equal", [chosen, np.float32(number)]))
            boxes = graph.add("Gather", [regions, of_level])
            pooled = graph.add(
                "RoiAlign",
                [graph.image(level), boxes, graph.add("Gather", [images, of_level])],
                coordinate_transformation_mode="output_half_pixel",  # with a minimum side of one cell
                mode="avg",
                sampling_ratio=SAMPLES,
                spatial_scale=1.0 / stride[0],
                output_height=self.side,
                output_width=self.side,
            )
            features.append(pooled)
            places.append(of_level)
        order = graph.add("Concat", places, axis=0)
        back = graph.add("ScatterElements", [order, order, _numbers_in_onnx(graph, order)], axis=0)
        return [graph.as_image(graph.add("Gather", [graph.add("Concat", features, axis=0), back]))]


class DetectedRegions(keras.layers.Layer):
    """Post-processing of the second stage.

    Class logits [B P, K + 1], deltas [B P, 4 (K + 1)], boxes [B, P, 4], validity [B, P] and sizes [B, 2] -> boxes
    [B, D, 4], scores [B, D], 0 in empty slots, and classes [B, D] int32.
    """

    def __init__(self, config: SuppressionConfig, **kwargs: Any):
        super().__init__(dtype="float32", **kwargs)
        self.config = config

    def call(self, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return boxes, scores and classes, see the class."""
        logits, deltas, boxes, valid, sizes = inputs
        count, classes = boxes.shape[1], logits.shape[-1]
        detections, _ = region_detections(
            ops.reshape(logits, (-1, count, classes)),
            ops.reshape(deltas, (-1, count, classes, 4)),
            boxes,
            valid,
            ops.cast(sizes, "int32"),
            config=self.config,
        )
        return detections.boxes, detections.scores, detections.classes

    def compute_output_spec(self, inputs: Sequence[KerasTensor]) -> tuple[KerasTensor, KerasTensor, KerasTensor]:
        """Return the specs of `call`'s outputs."""
        slots = self.config.max_detections
        return (
            KerasTensor((None, slots, 4), "float32"),
            KerasTensor((None, slots), "float32"),
            KerasTensor((None, slots), "int32"),
        )

    def add_to_onnx(self, graph: Any, inputs: Sequence[str], node: Any) -> list[str]:
        """Add the layer; return boxes [B, D, 4], scores [B, D] and classes [B, D]."""
        logits, deltas, boxes, valid, sizes = map(graph.keras, inputs)
        suppression, count = self.config, node.input_tensors[2].shape[1]
        classes = node.input_tensors[0].shape[-1] - 1
        probabilities = graph.add(
            "Slice", [graph.add("Softmax", [logits], axis=-1), np.array([1]), np.array([classes + 1]), np.array([1])]
        )
        probabilities = graph.add("Reshape", [probabilities, np.array([-1, count, classes])])
        exist = unsqueezed(graph, graph.cast(valid, "float32"))
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
        decoded = clipped(graph, decoded, sizes)
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


class MasksOfClasses(keras.layers.Layer):
    """Selection of the mask of each region's class.

    Mask logits [R, S, S, K + 1], scores [B, D] and classes [B, D] -> probabilities [B, D, S, S].
    The logits are those of the regions whose score is above 0, or of all. Probabilities are 0 where the score is 0.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(dtype="float32", **kwargs)

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        """Return the probabilities, see the class."""
        logits, scores, classes = inputs
        rows = regions_to_compute(scores > 0.0)
        class_masks = of_classes(logits, ops.take(ops.reshape(classes, (-1,)), rows, axis=0) + 1)
        places = ops.scatter(
            rows[:, None], ops.sigmoid(class_masks), (ops.shape(scores)[0] * scores.shape[1], *class_masks.shape[1:])
        )
        probabilities = ops.reshape(places, (-1, scores.shape[1], *class_masks.shape[1:]))
        return ops.where(scores[..., None, None] > 0.0, probabilities, 0.0)

    def compute_output_spec(self, inputs: Sequence[KerasTensor]) -> KerasTensor:
        """Return the spec of `call`'s output."""
        return KerasTensor((None, inputs[1].shape[1], *inputs[0].shape[1:3]), "float32")

    def add_to_onnx(self, graph: Any, inputs: Sequence[str], node: Any) -> list[str]:
        """Add the layer; return probabilities [B, D, S, S] of the regions that `AlignedRegions` has selected."""
        logits, (scores, classes) = graph.image(inputs[0]), map(graph.keras, inputs[1:])
        count, side = node.outputs[0].shape[1:3]
        rows = _places_in_onnx(graph, graph.add("Greater", [flat(graph, scores), _NONE]))
        class_masks = graph.add("Gather", [flat(graph, graph.cast(classes, "int64")), rows])
        class_masks = graph.add(
            "GatherND", [logits, unsqueezed(graph, graph.add("Add", [class_masks, np.array(1)]))], batch_dims=1
        )
        shape = graph.add("Concat", [graph.add("Shape", [flat(graph, scores)]), np.array([side, side])], axis=0)
        empty = graph.add("ConstantOfShape", [shape])
        filled = graph.add("ScatterND", [empty, unsqueezed(graph, rows), graph.add("Sigmoid", [class_masks])])
        return [graph.add("Reshape", [filled, np.array([-1, count, side, side])])]


def nms() -> Callable[..., Tensor]:
    """Return the fastest equivalent of `greedy_nms` on this backend and device."""
    if not tensorflow_cpu.runs_operations():
        return greedy_nms
    from efficientdet.plugins.mask_rcnn import tensorflow_cpu as by_tensorflow

    return by_tensorflow.greedy_nms


def weighted_sums() -> Callable[..., Tensor]:
    """Return the fastest equivalent of `gathered_sums` on this backend and device."""
    if not tensorflow_cpu.runs_operations():
        return gathered_sums
    from efficientdet.plugins.mask_rcnn import tensorflow_cpu as by_tensorflow

    return by_tensorflow.sparse_sums


def regions_to_compute(chosen: Tensor) -> Tensor:
    """Return the indices in [B N] of chosen regions, [B, N] bool -> [R] int32, or of all regions.

    Only those chosen are returned if shapes may depend on values, which is TensorFlow on a CPU without XLA.
    """
    chosen = ops.reshape(chosen, (-1,))
    if tensorflow_cpu.shapes_may_depend_on_values():
        return tensorflow_cpu.places(chosen)
    return ops.arange(ops.shape(chosen)[0], dtype="int32")


def _levels_in_onnx(graph: Any, boxes: str, *, finest: int, count: int) -> str:
    """Add `roi_align.region_levels` of boxes [R, 4]; return float32."""
    low, high = graph.add_several("Split", [boxes], 2, axis=-1, num_outputs=2)
    area = graph.add("ReduceProd", [graph.add("Sub", [high, low]), np.array([1])], keepdims=0)
    ratio = graph.add("Div", [graph.add("Sqrt", [area]), np.float32(CANONICAL_SIDE)])
    octaves = graph.add("Div", [graph.add("Log", [ratio]), np.float32(math.log(2))])
    level = graph.add("Floor", [graph.add("Add", [octaves, np.float32(CANONICAL_LEVEL + LEVEL_SLACK)])])
    level = graph.add("Clip", [level, np.float32(finest), np.float32(finest + count - 1)])
    return graph.add("Sub", [level, np.float32(finest)])


def _places_in_onnx(graph: Any, chosen: str) -> str:
    """Return the indices [n] int64 of the True values of [N] bool."""
    return flat(graph, graph.add("NonZero", [chosen]))


def _numbers_in_onnx(graph: Any, rows: str) -> str:
    """Return 0 to N - 1 for N rows, int64."""
    count = graph.add("Squeeze", [graph.add("Slice", [graph.add("Shape", [rows]), np.array([0]), np.array([1])])])
    return graph.add("Range", [np.array(0), count, np.array(1)])
