"""A family of a user else's: proposals, regions drawn from them at random, classes, boxes and masks of regions."""

from dataclasses import dataclass
from typing import NamedTuple

import keras
import numpy as np
from efficientdet.model.batch_norm import BatchNormalization
from efficientdet.model.detector import Detector  # the name in version 0.1
from efficientdet.object_detection.assignment.anchor_assignment import assign_anchors
from efficientdet.object_detection.geometry.anchor_grid import AnchorLevel, grid_of_levels
from efficientdet.object_detection.geometry.box_coding import PLAIN_BOX_CODER
from efficientdet.object_detection.geometry.box_geometry import pairwise_iou
from efficientdet.object_detection.losses import l1_loss, softmax_cross_entropy
from efficientdet.object_detection.stateless_random import uniform_draws
from efficientdet.object_detection.structures import Detections, Targets
from keras import layers, ops

from efficientdet.families.family import Family
from efficientdet.families.hyperparameters import Hyperparameters

CELLS, REGIONS, SIDE = 8, 12, 14  # a side, an image, and a mask's side


class RegionTargets(NamedTuple):
    proposals: Targets
    drawn: object  # [B, R] bool
    classes: object  # [B, R] int32, 0: background
    deltas: object  # [B, R, 4]
    masks: object  # [B, R, S * S]


class Regions(layers.Layer):
    """The features of the cells with the best proposals, and these: [B, R, C] and [B, R, 4]."""

    def __init__(self, anchors, **settings):
        super().__init__(**settings)
        self.anchors = anchors

    def call(self, inputs):
        features, logits, deltas = (ops.reshape(part, (-1, CELLS**2, part.shape[-1])) for part in inputs)
        places = ops.top_k(logits[..., 0], REGIONS)[1][..., None]
        boxes = PLAIN_BOX_CODER.decode(ops.clip(deltas, -2.0, 2.0), ops.convert_to_tensor(self.anchors))
        return ops.take_along_axis(features, places, axis=1), ops.take_along_axis(boxes, places, axis=1)

    def to_onnx(self, graph, inputs):
        features, logits, deltas = (
            graph.add("Reshape", [part, np.array([0, CELLS**2, graph.shape_of(part)[-1]])]) for part in inputs
        )
        flat = graph.add("Squeeze", [logits, np.array([2])])
        _, places = graph.add_several("TopK", [flat, np.array([REGIONS])], 2)
        places = graph.add("Unsqueeze", [places, np.array([2])])
        sides = (self.anchors[:, 2:] - self.anchors[:, :2])[None]
        centers, logs = graph.add_several(
            "Split", [graph.add("Clip", [deltas, np.float32(-2), np.float32(2)])], 2, axis=2, num_outputs=2
        )
        centers = graph.add(
            "Add", [graph.add("Mul", [centers, sides]), (self.anchors[:, 2:] + self.anchors[:, :2])[None] / 2]
        )
        halves = graph.add("Mul", [graph.add("Exp", [logs]), sides / 2])
        boxes = graph.add("Concat", [graph.add("Sub", [centers, halves]), graph.add("Add", [centers, halves])], axis=2)
        return [graph.add("GatherND", [part, places], batch_dims=1) for part in (features, boxes)]


class TwoStage(Detector):
    learns_from_outputs = True

    def __init__(self, hparams, num_classes):
        self.image_size, stride = hparams.input_size, hparams.input_size[0] // CELLS
        self.grid = grid_of_levels(
            [
                AnchorLevel(
                    counts=(CELLS, CELLS),
                    strides=(stride, stride),
                    offset=(stride / 2, stride / 2),
                    shapes=((24.0, 24.0),),
                )
            ]
        )
        image = x = keras.Input((*self.image_size, 3))
        for number in range(3):
            x = layers.Conv2D(16, 3, 2, padding="same", use_bias=False, name=f"backbone.{number}.conv")(x)
            norm = BatchNormalization(name=f"backbone.{number}.bn")
            norm.trainable = hparams.is_training_bn
            x = layers.ReLU()(norm(x))
        logits, deltas = layers.Conv2D(1, 1, name="proposal.logits")(x), layers.Conv2D(4, 1, name="proposal.deltas")(x)
        features, boxes = Regions(self.grid.boxes, name="regions")([x, logits, deltas])
        hidden = layers.Dense(32, activation="relu", name="region.hidden")(features)
        heads = [
            layers.Dense(size, name=f"region.{name}")(hidden)
            for name, size in (("classes", num_classes + 1), ("deltas", 4), ("masks", SIDE**2))
        ]
        self.network = keras.Model(
            image, [layers.Reshape((-1, 1))(logits), layers.Reshape((-1, 4))(deltas), boxes, *heads]
        )

    def normalize(self, images, sizes):
        inside = [ops.arange(side)[None] < sizes[:, i, None] for i, side in enumerate(self.image_size)]
        inside = ops.logical_and(inside[0][:, :, None], inside[1][:, None])[..., None]
        return ops.where(inside, ops.cast(images, "float32") / 127.5 - 1.0, 0.0)

    def outputs(self, images, sizes, *, training=False):
        return tuple(ops.cast(out, "float32") for out in self.network(self.normalize(images, sizes), training=training))

    def targets(self, objects, outputs=None, seeds=None):
        boxes, learnable = outputs[2], ops.logical_and(objects.valid, ops.logical_not(objects.crowd))
        overlap = ops.where(learnable[:, None], pairwise_iou(boxes, objects.boxes), 0.0)  # [B, R, M]
        best, inside = ops.argmax(overlap, axis=-1), ops.max(overlap, axis=-1) >= 0.4

        def of_best(values):
            place = ops.reshape(best, (*best.shape, *[1] * (len(values.shape) - 2)))
            return ops.take_along_axis(values, place, axis=1)

        masks = ops.reshape(objects.masks, (*ops.shape(objects.masks)[:2], SIDE**2))
        return RegionTargets(
            assign_anchors(objects, self.grid),
            ops.logical_or(inside, uniform_draws(seeds, REGIONS) < 0.5),
            ops.where(inside, of_best(objects.classes) + 1, 0),
            ops.where(inside[..., None], PLAIN_BOX_CODER.encode(of_best(objects.boxes), boxes), 0.0),
            ops.cast(of_best(masks), "float32"),
        )

    def counts(self, targets):
        counted = {"positives": targets.proposals.positive, "regions": targets.drawn, "objects": targets.classes > 0}
        return {name: ops.sum(ops.cast(values, "float32")) for name, values in counted.items()}

    def loss_sums(self, outputs, targets):
        logits, deltas, _, classes, refined, masks = outputs
        positive, drawn, inside = (
            ops.cast(values, "float32") for values in (targets.proposals.positive, targets.drawn, targets.classes > 0)
        )
        wanted = ops.cast(targets.masks, "float32")
        return {
            "proposal_loss": ops.sum(ops.softplus(logits[..., 0]) - positive * logits[..., 0]),
            "proposal_box_loss": ops.sum(l1_loss(deltas - targets.proposals.box_deltas) * positive[..., None]),
            "cls_loss": ops.sum(softmax_cross_entropy(classes, targets.classes) * drawn),
            "box_loss": ops.sum(l1_loss(refined - targets.deltas) * inside[..., None]),
            "mask_loss": ops.sum(ops.mean(ops.softplus(masks) - wanted * masks, axis=-1) * inside),
        }

    def normalizers(self, counts):
        anchors, regions, objects = (counts[name] + 1.0 for name in ("positives", "regions", "objects"))
        return {
            "proposal_loss": anchors,
            "proposal_box_loss": anchors,
            "cls_loss": regions,
            "box_loss": objects,
            "mask_loss": objects,
        }

    def detections(self, outputs, sizes):
        _, _, boxes, classes, deltas, masks = outputs
        probabilities = ops.softmax(classes)[..., 1:]
        scores, order = ops.top_k(ops.max(probabilities, axis=-1), REGIONS)
        classes = ops.take_along_axis(ops.cast(ops.argmax(probabilities, axis=-1), "int32"), order, axis=1)
        refined, masks = (
            ops.take_along_axis(values, order[..., None], axis=1)
            for values in (PLAIN_BOX_CODER.decode(ops.clip(deltas, -2.0, 2.0), boxes), ops.sigmoid(masks))
        )
        return Detections(refined, scores, classes, scores > 0.0, ops.reshape(masks, (-1, REGIONS, SIDE, SIDE)))


@dataclass(frozen=True, kw_only=True)
class TwoStageHyperparameters(Hyperparameters):
    mask_size: int = SIDE
    clip_gradients_norm: float = 1.0


class TwoStageFamily(Family):
    name, hyperparameters, presets = (
        "standin-two-stage",
        TwoStageHyperparameters,
        {"standin-two-stage": {"image_size": 64}},
    )

    def build(self, hparams, *, num_classes, precision="float32"):
        return TwoStage(hparams, num_classes)

    def is_class_predictor(self, name):
        return name.startswith("region/classes/")


FAMILY = TwoStageFamily()
