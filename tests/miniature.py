"""A detector small enough to train inside a test: four convolutions, the real heads, anchors of levels 3 and 4.

Layers are named as in the published checkpoints, so that everything which goes by name (checkpoints, frozen variables,
backbone weights, the class predictor) can be tried on it.
"""

import dataclasses

import keras
import numpy as np

from efficientdet.checkpoints.store import TrainingProgress
from efficientdet.devices.device import assign
from efficientdet.families.efficientdet.build import detector_config
from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters
from efficientdet.families.hyperparameters import height_and_width
from model.batch_norm import BatchNormalization
from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
from model.heads import HeadConfig, build_box_head, build_class_head
from object_detection.geometry.anchor_grid import AnchorConfig
from object_detection.suppression.tensor_suppression import SuppressionConfig

MINIATURE_BACKBONE = "efficientnet-miniature"
HPARAMS = {
    "image_size": 64,
    "num_epochs": 3,
    "learning_rate": 0.02,
    "lr_warmup_epoch": 1.0,
    "lr_warmup_init": 0.001,
    "jitter_min": 0.8,
    "jitter_max": 1.2,
    "moving_average_decay": 0.9,
}


def miniature_detector(
    num_classes: int = 3,
    image_size: tuple[int, int] = (64, 64),
    seed: int = 0,
    *,
    precision: str = "float32",
    losses: LossConfig | None = None,
    suppression: SuppressionConfig | None = None,
    pyramid_filters: int = 24,
) -> DenseDetector:
    """A `DenseDetector` with about 14,000 random weights, the same ones for the same seed.

    64 x 64 pixels give 720 anchors (8 x 8 and 4 x 4 cells, 9 each) with sides of 16 to 51 pixels.
    """
    anchors = AnchorConfig(min_level=3, max_level=4, anchor_scale=2.0)
    keras.utils.set_random_seed(seed)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        network = _network(num_classes, image_size, anchors, pyramid_filters)
    finally:
        keras.config.set_dtype_policy(previous)
    return DenseDetector(
        network,
        DenseDetectorConfig(
            image_size=image_size,
            anchors=anchors,
            first_head_layer="class_net.class-0",
            losses=losses or LossConfig(),
            suppression=suppression or SuppressionConfig(candidates=100, max_detections=20),
        ),
    )


def build_miniature(hparams, *, num_classes, precision="float32"):
    """In the place of `efficientdet.families.efficientdet.build.build_detector`."""
    detector = miniature_detector(num_classes, height_and_width(hparams.image_size), precision=precision)
    for layer in detector.network.layers:
        if isinstance(layer, BatchNormalization):
            layer.trainable = bool(hparams.is_training_bn)
    if not isinstance(hparams, EfficientDetHyperparameters):
        return detector
    config = detector_config(hparams)
    if config.assigner == detector.config.assigner:
        return detector
    adaptive = dataclasses.replace(detector.config, assigner=config.assigner, losses=config.losses)
    return DenseDetector(detector.network, adaptive)


def reset_once_made(initial_state):
    """Give later trainings of equal settings the same variables, reset, so that their programs need no tracing."""
    states = {}

    def state_of(config, **options):
        # The schedule is no part of the state: its rate is an argument of the step
        hparams = dataclasses.replace(config.hparams, num_epochs=1, learning_rate=1.0, lr_warmup_epoch=1.0)
        key = repr((hparams, config.class_names, config.batch_size, options["precision"]))
        if hparams.var_freeze_expr or key not in states:
            state = initial_state(config, **options)
            average = [state.average.packed] if state.average else []
            variables = [*state.detector.network.variables, *state.optimizer.variables.values(), *average]
            states[key] = state, variables, [np.asarray(variable.value).copy() for variable in variables]
        state, variables, values = states[key]
        assign(variables, values)
        return dataclasses.replace(state, world=options["world"], progress=TrainingProgress())

    return state_of


def _network(num_classes: int, image_size: tuple[int, int], anchors: AnchorConfig, pyramid_filters: int) -> keras.Model:
    images = keras.Input((*image_size, 3), name="images")
    features, levels = images, []
    for number, filters in enumerate((8, 16, pyramid_filters, pyramid_filters)):  # strides 2, 4, 8, 16
        name = f"{MINIATURE_BACKBONE}.blocks_{number}"
        features = keras.layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False, name=f"{name}.conv2d")(
            features
        )
        features = BatchNormalization(name=f"{name}.tpu_batch_normalization")(features)
        features = keras.layers.Activation("silu")(features)
        levels.append(features)
    head = HeadConfig(filters=pyramid_filters, depth=1, min_level=anchors.min_level)
    class_logits = build_class_head(levels[2:], head, num_anchors=anchors.per_cell, num_classes=num_classes)
    box_deltas = build_box_head(levels[2:], head, num_anchors=anchors.per_cell)
    return keras.Model(images, [class_logits, box_deltas], name="miniature")
