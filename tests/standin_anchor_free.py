"""A family without anchor boxes: each cell predicts the distances from its center to the four sides of an object.

One cell is assigned to each object, by the network's own outputs, so that nothing has to be suppressed (Wang et al.
2021, "End-to-end object detection with fully convolutional network", in short).
"""

from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
from efficientdet.model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
from efficientdet.object_detection.assignment.anchor_assignment import Assigner
from efficientdet.object_detection.geometry.anchor_grid import AnchorLevel
from efficientdet.object_detection.geometry.box_coding import BoxCoder
from efficientdet.object_detection.geometry.box_geometry import pairwise_iou
from efficientdet.object_detection.structures import Targets
from efficientdet.object_detection.suppression.tensor_suppression import SuppressionConfig
from keras import layers, ops

from efficientdet.families.family import Family
from efficientdet.families.hyperparameters import Hyperparameters

STRIDE = 8
OUTWARDS = np.float32([-1, -1, 1, 1])


@dataclass(frozen=True)
class SideDistances(BoxCoder):
    """Distances from the center of a cell to the sides of a box, in strides; below 0 for a side beyond the center."""

    def encode(self, boxes, anchors):
        return (boxes - self._centers(anchors)) * OUTWARDS / STRIDE

    def decode(self, box_deltas, anchors):
        return self._centers(anchors) + box_deltas * OUTWARDS * STRIDE

    def decode_in_onnx(self, graph, box_deltas, anchors):
        low, high = graph.add_several("Split", [anchors], 2, axis=-1, num_outputs=2)
        center = graph.add("Div", [graph.add("Add", [low, high]), np.float32(2)])
        moved = graph.add("Mul", [box_deltas, OUTWARDS * STRIDE])
        return graph.add("Add", [graph.add("Concat", [center, center], axis=-1), moved])

    def _centers(self, anchors):
        centers = (anchors[..., :2] + anchors[..., 2:]) / 2.0
        return ops.concatenate([centers, centers], axis=-1)


class OneToOne(Assigner):
    """Assign each object the cell inside it that finds it best already: score of its class times a power of the IoU."""

    reads_outputs = True

    def assign(self, objects, grid, *, box_coder, outputs=None):
        logits, deltas = outputs
        anchors = ops.convert_to_tensor(grid.boxes)
        trainable = ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
        scores = ops.take_along_axis(
            ops.sigmoid(logits), ops.cast(objects.classes, "int32")[:, None], axis=2
        )  # [B, A, M]
        overlap = pairwise_iou(box_coder.decode(deltas, anchors), objects.boxes)
        distances = box_coder.encode(objects.boxes[:, None], anchors[:, None])  # [B, A, M, 4]
        inside = ops.min(distances, axis=-1) > 0.0
        quality = ops.where(inside, 1e-3 + ops.power(scores, 0.2) * ops.power(overlap, 0.8), 0.0)
        quality = ops.where(trainable[:, None], quality, 0.0)
        best = ops.max(quality, axis=1, keepdims=True)
        of_object = ops.logical_and(quality == best, best > 0.0)  # [B, A, M]
        positive = ops.any(of_object, axis=-1)
        numbers = ops.argmax(ops.where(of_object, quality, -1.0), axis=-1)
        boxes = ops.take_along_axis(objects.boxes, numbers[..., None], axis=1)
        encoded = box_coder.encode(boxes, anchors)
        classes = ops.take_along_axis(ops.cast(objects.classes, "int32"), numbers, axis=1)
        return Targets(
            ops.where(positive, classes, 0),
            ops.where(positive[..., None], encoded, 0.0),
            positive,
            ops.zeros_like(positive),
        )


class AnchorFree(Family):
    """See `Family`."""

    name, hyperparameters = "standin-anchor-free", Hyperparameters
    presets: ClassVar = {
        "standin-anchor-free": {"image_size": 64, "jitter_min": 0.9, "jitter_max": 1.1, "moving_average_decay": 0.5}
    }

    def build(self, hparams, *, num_classes, precision="float32"):
        images = features = keras.Input((*hparams.input_size, 3), name="images")
        for number, strides in enumerate((2, 2, 2, 1)):
            features = layers.Conv2D(
                24, 3, strides, padding="same", use_bias=False, name=f"trunk.{number}", dtype=precision
            )(features)
            features = layers.ReLU(dtype=precision)(
                layers.BatchNormalization(
                    momentum=0.9, dtype=precision, trainable=hparams.is_training_bn, name=f"trunk.bn{number}"
                )(features)
            )
        outputs = [
            layers.Reshape((-1, values), dtype=precision)(
                layers.Conv2D(
                    values, 1, name=f"head.{name}", dtype=precision, bias_initializer=keras.initializers.Constant(bias)
                )(features)
            )
            for name, values, bias in (("classes", num_classes, -3.0), ("distances", 4, 1.0))
        ]
        height, width = features.shape[1:3]
        coder = SideDistances()
        return DenseDetector(
            keras.Model(images, outputs),
            DenseDetectorConfig(
                image_size=hparams.input_size,
                assigner=OneToOne(),
                anchors=[
                    AnchorLevel(
                        counts=(height, width),
                        strides=(STRIDE, STRIDE),
                        offset=(STRIDE / 2, STRIDE / 2),
                        shapes=((STRIDE, STRIDE),),
                    )
                ],
                losses=LossConfig(class_loss_weight=4.0, box_loss="l1", box_loss_weight=4.0),
                suppression=SuppressionConfig(method="none", candidates=64, max_detections=20, box_coder=coder),
            ),
        )

    def is_class_predictor(self, name):
        return name.startswith("head/classes/")

    def is_backbone(self, name):
        return name.startswith("trunk/")


FAMILY = AnchorFree()
