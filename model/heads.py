"""Class and box heads of EfficientDet: convolutions shared by all levels, batch statistics per level.

Layer names are those of the published TensorFlow checkpoints, with dots instead of slashes.
"""

import math
from dataclasses import dataclass

import keras

from model.batch_norm import BatchNormalization
from model.fast_layers import activation_layer
from object_detection.structures import Tensor

PRIOR_PROBABILITY = 0.01  # an object's at an anchor before training (Lin et al. 2017, section 4.1)


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Shape of a head: `depth` hidden convolutions of `filters` channels, then a predictor."""

    filters: int
    depth: int
    min_level: int = 3
    activation: str = "silu"
    separable_conv: bool = True


def build_class_head(pyramid: list[Tensor], config: HeadConfig, *, num_anchors: int, num_classes: int) -> Tensor:
    """Return class logits of every anchor. Tensors [B, h, w, F], finest first -> [B, A, num_classes]."""
    bias = keras.initializers.Constant(-math.log((1 - PRIOR_PROBABILITY) / PRIOR_PROBABILITY))
    return _build_head(pyramid, config, name="class", outputs=(num_anchors, num_classes), bias=bias)


def build_box_head(pyramid: list[Tensor], config: HeadConfig, *, num_anchors: int) -> Tensor:
    """Return box deltas (t_y, t_x, t_h, t_w) of every anchor. Tensors [B, h, w, F], finest first -> [B, A, 4]."""
    return _build_head(pyramid, config, name="box", outputs=(num_anchors, 4), bias=keras.initializers.Zeros())


def _build_head(
    pyramid: list[Tensor], config: HeadConfig, *, name: str, outputs: tuple[int, int], bias: keras.Initializer
) -> Tensor:
    num_anchors, values = outputs
    hidden = [
        _conv(config, config.filters, name=f"{name}_net.{name}-{i}", bias=keras.initializers.Zeros())
        for i in range(config.depth)
    ]
    predict = _conv(config, num_anchors * values, name=f"{name}_net.{name}-predict", bias=bias)
    flat = []
    for level, features in enumerate(pyramid, start=config.min_level):
        for i, conv in enumerate(hidden):
            features = BatchNormalization(name=f"{name}_net.{name}-{i}-bn-{level}")(conv(features))
            features = activation_layer(config.activation)(features)
        flat.append(keras.layers.Reshape((-1, values))(predict(features)))  # [B, h * w * num_anchors, values]
    return keras.layers.Concatenate(axis=1)(flat)


def _conv(config: HeadConfig, filters: int, *, name: str, bias: keras.Initializer) -> keras.Layer:
    if not config.separable_conv:
        return keras.layers.Conv2D(
            filters,
            3,
            padding="same",
            name=name,
            bias_initializer=bias,
            kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        )
    return keras.layers.SeparableConv2D(
        filters,
        3,
        padding="same",
        name=name,
        bias_initializer=bias,
        depthwise_initializer=keras.initializers.VarianceScaling(),
        pointwise_initializer=keras.initializers.VarianceScaling(),
    )
