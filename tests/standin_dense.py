"""A family of detectors from another package, which the program knows by its entry point alone (see standins.py).

A trunk of convolutions with VALID padding, whose maps are 7 x 7 and 3 x 3 at 64 pixels; 4 and 6 anchors a cell; classes
and the background share a softmax. Free of Keras until it builds.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from efficientdet.program_support.checked_fields import Count

from efficientdet.families.family import ClassLayout, Family
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.quickstart_recipe import LearningRate, QuickstartRecipe, StartRecipe

SHAPES = (
    ((12, 12), (10, 20), (20, 10), (18, 18)),  # height and width of the anchors on each level, in pixels
    ((28, 28), (20, 40), (40, 20), (40, 40), (30, 56), (56, 30)),
)
_START = StartRecipe(rate=LearningRate(per_image=0.01, maximum=0.04), steps=10, smaller_input_first=False)
PREDICTOR = re.compile(r"head/classes(\d)/(kernel|bias)")


@dataclass(frozen=True, kw_only=True)
class StandinHyperparameters(Hyperparameters):
    """Beside what all have."""

    filters: Count = 16  # of the trunk


def network_of(hparams, num_classes, precision):
    """Logits [B, A, 1 + K], the background first, box deltas [B, A, 4], and the cells of each level."""
    import keras
    from keras import layers

    images = keras.Input((*hparams.input_size, 3), name="images")
    features, levels = images, []
    for number in range(4):  # strides 2, 4, 8, 16
        features = layers.Conv2D(
            hparams.filters, 3, strides=2, padding="valid", use_bias=False, dtype=precision, name=f"trunk.conv{number}"
        )(features)
        features = layers.BatchNormalization(
            momentum=0.9, dtype=precision, trainable=hparams.is_training_bn, name=f"trunk.bn{number}"
        )(features)
        features = layers.ReLU(dtype=precision)(features)
        levels.append(features)

    def head(name, values):
        maps = [
            layers.Conv2D(len(shapes) * values, 1, dtype=precision, name=f"head.{name}{number}")(level)
            for number, (level, shapes) in enumerate(zip(levels[2:], SHAPES, strict=True))
        ]
        return layers.Concatenate(axis=1, dtype=precision)(
            [layers.Reshape((-1, values), dtype=precision)(m) for m in maps]
        )

    outputs = [head("classes", 1 + num_classes), head("boxes", 4)]
    return keras.Model(images, outputs, name="standin_dense"), [tuple(level.shape[1:3]) for level in levels[2:]]


class StandinDense(Family):
    """See `Family`."""

    name, hyperparameters, conventions = "standin-dense", StandinHyperparameters, ("filters",)
    presets: ClassVar = {
        "standin-dense": {"image_size": 64, "jitter_min": 0.9, "jitter_max": 1.1, "moving_average_decay": 0.5}
    }
    quickstart = QuickstartRecipe(random=_START, detector=_START, min_side=64)

    def build(self, hparams, *, num_classes, precision="float32"):
        from efficientdet.model.dense_detector import DenseDetector, DenseDetectorConfig
        from efficientdet.model.dense_losses import LossConfig
        from efficientdet.object_detection.assignment.anchor_assignment import IouAssigner
        from efficientdet.object_detection.geometry.anchor_grid import AnchorLevel
        from efficientdet.object_detection.geometry.box_coding import FasterRcnnBoxCoder
        from efficientdet.object_detection.suppression.tensor_suppression import SuppressionConfig

        network, cells = network_of(hparams, num_classes, precision)
        anchors = [
            AnchorLevel(counts=counts, strides=(stride, stride), offset=(stride - 0.5, stride - 0.5), shapes=shapes)
            for counts, stride, shapes in zip(cells, (8, 16), SHAPES, strict=True)
        ]
        return DenseDetector(
            network,
            DenseDetectorConfig(
                image_size=hparams.input_size,
                anchors=anchors,
                mean=(0.5, 0.5, 0.5),
                stddev=(0.25, 0.25, 0.25),
                assigner=IouAssigner(positive_iou=0.5, negative_iou=0.4, claim="ties"),
                losses=LossConfig(
                    class_loss="softmax cross entropy",
                    box_loss="smooth l1",
                    delta=1.0,
                    box_loss_weight=1.0,
                    normalizer="positives of each image",
                    weight_decay=hparams.decays_in_loss,
                ),
                suppression=SuppressionConfig(
                    method="hard",
                    scores="softmax",
                    candidates_per_level=50,
                    candidates=100,
                    max_detections=20,
                    score_threshold=0.01,
                    box_coder=FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0), log_size_limit=4.0),
                ),
            ),
        )

    def is_class_predictor(self, name):
        return PREDICTOR.fullmatch(name) is not None

    def is_backbone(self, name):
        return name.startswith("trunk/")

    def count_classes(self, arrays, shapes):
        bias = arrays.get("head/classes0/bias")  # the background's among them
        return None if bias is None else len(bias) // len(SHAPES[0]) - 1

    def class_layout(self, name, shapes):
        """Of each anchor the background and the classes."""
        found = PREDICTOR.fullmatch(name)
        return ClassLayout(before=len(SHAPES[int(found[1])]), background=1) if found else None


FAMILY = StandinDense()
