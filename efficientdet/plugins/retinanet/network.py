"""RetinaNet (Lin et al. 2017) on a ResNet, as in torchvision and MLPerf. Layers have torch's names."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import keras
from keras import layers

from model.heads import PRIOR_PROBABILITY
from model.resnet import WIDTH, build_feature_pyramid, build_resnet, freeze, with_two_coarser
from object_detection.structures import Tensor

BODY, PYRAMID = "backbone.body.", "backbone.fpn."  # prefixes of layer names
_DEPTH = 4  # hidden convolutions per head


@dataclass(frozen=True, kw_only=True)
class RetinaNetConfig:
    """Shape of the network.

    Attributes:
        trainable_stages: number of trainable stages of the backbone's five, counted from the last.
        head_kernel_stddev: initial standard deviation of the heads' hidden kernels. With the published 0.01 each of the
            four convolutions reduces its input to a third, so that training without pretrained weights does not
            progress for hundreds of steps; 0.03 preserves it.
    """

    backbone: str
    image_size: tuple[int, int]  # height, width
    num_classes: int
    anchors_per_cell: int = 9
    epsilon: float = 1e-5  # batch normalization's
    head_kernel_stddev: float = 0.01
    trainable_stages: int = 3
    trains_batch_norm: bool = False


def build_retinanet(
    config: RetinaNetConfig, *, precision: str = "float32"
) -> tuple[keras.Model, list[tuple[int, int]]]:
    """Return the network from normalized images to raw outputs, and the cells (rows, columns) of its levels up to P7.

    A functional model: [B, H, W, 3] float -> class logits [B, A, K] and box deltas [B, A, 4], in the compute dtype of
    `precision`. Order of A: level, row, column, anchor.
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        images = keras.Input((*config.image_size, 3), name="images")
        stages = build_resnet(images, config.backbone, prefix=BODY, epsilon=config.epsilon)
        levels = build_feature_pyramid(stages[1:], prefix=PYRAMID)
        levels = with_two_coarser(levels, prefix=PYRAMID)
        bias = keras.initializers.Constant(-math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY))
        head = partial(_head, levels, anchors=config.anchors_per_cell, stddev=config.head_kernel_stddev)
        logits = head("head.classification_head", "cls_logits", values=config.num_classes, bias=bias)
        deltas = head("head.regression_head", "bbox_reg", values=4, bias=keras.initializers.Zeros())
        network = keras.Model(images, [logits, deltas], name="retinanet")
    finally:
        keras.config.set_dtype_policy(previous)
    freeze(network, trainable_stages=config.trainable_stages, trains_batch_norm=config.trains_batch_norm, prefix=BODY)
    return network, [tuple(level.shape[1:3]) for level in levels]


def _head(
    levels: Sequence[Tensor],
    name: str,
    predictor: str,
    *,
    anchors: int,
    values: int,
    stddev: float,
    bias: keras.Initializer,
) -> Tensor:
    """Return [B, A, values] by convolutions that all levels [B, h, w, WIDTH] share."""
    hidden = [
        layers.Conv2D(
            WIDTH,
            3,
            padding="same",
            kernel_initializer=keras.initializers.RandomNormal(stddev=stddev),
            name=f"{name}.conv.{2 * number}",
        )
        for number in range(_DEPTH)
    ]
    predict = layers.Conv2D(
        anchors * values,
        3,
        padding="same",
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        bias_initializer=bias,
        name=f"{name}.{predictor}",
    )
    flat = []
    for level, features in enumerate(levels, start=3):
        for number, layer in enumerate(hidden):
            features = layers.ReLU(name=f"{name}.relu{number}.p{level}")(layer(features))
        flat.append(layers.Reshape((-1, values), name=f"{name}.flat.p{level}")(predict(features)))
    return layers.Concatenate(axis=1, name=f"{name}.all_levels")(flat)
