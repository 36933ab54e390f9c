"""Layers between the parts of a two-stage network: proposals, features of regions, detections.

They have no weights, and only the features of regions have a gradient.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import KerasTensor, ops

from model import tensorflow_cpu
from object_detection.geometry.anchor_grid import AnchorGrid
from object_detection.regions.proposals import ProposalConfig, proposal_slots, region_proposals
from object_detection.regions.region_detections import region_detections
from object_detection.regions.region_losses import of_classes
from object_detection.regions.roi_align import RegionPooling, features_of_regions
from object_detection.structures import Tensor
from object_detection.suppression.greedy_nms import greedy_nms
from object_detection.suppression.tensor_suppression import SuppressionConfig


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


class AlignedRegions(keras.layers.Layer):
    """Levels [B, h, w, C] and boxes [B, N, 4] -> features [B N, side, side, C] of the regions (RoIAlign).

    `pooling` selects the levels and samples.

    With scores [B, N] as a further input, only regions whose score is above 0 are returned, if the number of regions
    may depend on values; in compiled programs always all.
    """

    def __init__(self, side: int, image_size: tuple[int, int], pooling: RegionPooling, **kwargs: Any):
        super().__init__(**kwargs)
        self.side, self.image_size, self.pooling = side, image_size, pooling

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
            pooling=self.pooling,
            weighted_sums=tensorflow_cpu.sparse_sums if tensorflow_cpu.applies() else None,
        )

    def compute_output_spec(self, inputs: Sequence[KerasTensor]) -> KerasTensor:
        """Return the spec of `call`'s output."""
        return KerasTensor((None, self.side, self.side, inputs[0].shape[-1]), inputs[0].dtype)


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


def nms() -> Callable[..., Tensor]:
    """Return the fastest equivalent of `greedy_nms` on this backend and device."""
    return tensorflow_cpu.greedy_nms if tensorflow_cpu.applies() else greedy_nms


def regions_to_compute(chosen: Tensor) -> Tensor:
    """Return the indices in [B N] of chosen regions, [B, N] bool -> [R] int32, or of all regions.

    Only those chosen are returned if shapes may depend on values, which is TensorFlow on a CPU without XLA.
    """
    chosen = ops.reshape(chosen, (-1,))
    if tensorflow_cpu.shapes_may_depend_on_values():
        return tensorflow_cpu.places(chosen)
    return ops.arange(ops.shape(chosen)[0], dtype="int32")
