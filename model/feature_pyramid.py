"""Feature pyramid of Lin et al. 2017: coarse features are added to finer ones. Layers have torch's names."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers

from model.bifpn import NearestResize
from model.resnet import convolution
from object_detection.structures import Tensor

WIDTH = 256  # channels of every level


def _options() -> dict[str, Any]:
    """Return torch's kaiming_uniform(a=1), with standard deviation 1 / sqrt(fan_in), and a bias."""
    return {"use_bias": True, "kernel_initializer": keras.initializers.VarianceScaling(1.0, "fan_in", "uniform")}


def build_feature_pyramid(features: Sequence[Tensor], *, prefix: str = "") -> list[Tensor]:
    """Return a level for each of the features [B, h, w, C], finest first: [B, h, w, WIDTH]."""
    merged: list[Tensor] = []
    for number, feature in reversed(list(enumerate(features))):
        lateral = convolution(feature, WIDTH, 1, name=f"{prefix}inner_blocks.{number}", **_options())
        if merged:
            coarser = NearestResize(lateral.shape[1:3], name=f"{prefix}upsampled.{number}")(merged[-1])
            lateral = layers.Add(name=f"{prefix}merged.{number}")([lateral, coarser])
        merged.append(lateral)
    return [
        convolution(level, WIDTH, 3, name=f"{prefix}layer_blocks.{number}", **_options())
        for number, level in enumerate(reversed(merged))
    ]


def with_two_coarser(levels: Sequence[Tensor], *, prefix: str = "") -> list[Tensor]:
    """Return the levels with RetinaNet's P6 and P7 appended.

    P6 is a convolution with stride 2 of the last level (not of the backbone), P7 one of P6 after ReLU.
    """
    p6 = convolution(levels[-1], WIDTH, 3, stride=2, name=f"{prefix}extra_blocks.p6", **_options())
    positive = layers.ReLU(name=f"{prefix}extra_blocks.relu")(p6)
    return [*levels, p6, convolution(positive, WIDTH, 3, stride=2, name=f"{prefix}extra_blocks.p7", **_options())]
