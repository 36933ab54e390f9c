"""ResNet-18, 34 and 50 and ResNeXt-50 (He et al. 2016, Xie et al. 2017) in the form of torchvision's published weights.

A bottleneck has stride 2 in its 3 x 3 convolution. Padding is the same on both sides, which differs from `same` for
even sides and stride 2. Layers have torch's names.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers

from model import tensorflow_cpu
from model.batch_norm import BatchNormalization
from model.bifpn import NearestResize
from object_detection.structures import Tensor
from program_support.errors import InputError

WIDTHS = (64, 128, 256, 512)  # one per stage
_STAGES = 1 + len(WIDTHS)  # including the stem
RESIDUAL_INITIALIZER = keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")


@keras.saving.register_keras_serializable("efficientdet")
class GroupedConv2D(keras.layers.Conv2D):
    """Keras's layer with a faster implementation for TensorFlow on a CPU."""

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        """Convolve [B, H, W, C] by [k, k, C / groups, F] to [B, h, w, F]."""
        if not tensorflow_cpu.applies():
            return super().convolution_op(inputs, kernel)
        return tensorflow_cpu.grouped_conv(
            inputs, kernel, strides=self.strides, padding=self.padding, dilations=self.dilation_rate
        )


@dataclass(frozen=True)
class ResNetConfig:
    """Residual blocks per stage, bottlenecks or not, and groups of `group_width` channels."""

    blocks: tuple[int, int, int, int]
    bottleneck: bool
    groups: int = 1
    group_width: int = 64

    def inner_width(self, stage: int) -> int:
        """Return the channels of a bottleneck's 3 x 3 convolution."""
        return WIDTHS[stage] * self.group_width // 64 * self.groups

    def outer_width(self, stage: int) -> int:
        """Return the output channels of a stage."""
        return WIDTHS[stage] * (4 if self.bottleneck else 1)


RESNETS = {
    "resnet18": ResNetConfig((2, 2, 2, 2), bottleneck=False),
    "resnet34": ResNetConfig((3, 4, 6, 3), bottleneck=False),
    "resnet50": ResNetConfig((3, 4, 6, 3), bottleneck=True),
    "resnext50_32x4d": ResNetConfig((3, 4, 6, 3), bottleneck=True, groups=32, group_width=4),
}


def build_resnet(
    images: Tensor, name: str, *, prefix: str = "", stage_strides: Sequence[int] = (1, 2, 2, 2), epsilon: float = 1e-5
) -> list[Tensor]:
    """Return the output of each stage: normalized images [B, H, W, 3] -> [B, h, w, C], the first at stride 4.

    Args:
        images: the input tensor.
        name: one of RESNETS.
        prefix: of the names of all layers.
        stage_strides: strides of the stages to build.
        epsilon: of batch norm.

    Raises:
        InputError: unknown name.
    """
    if name not in RESNETS:
        raise InputError(f"backbone {name!r}; expected one of {', '.join(RESNETS)}")
    config = RESNETS[name]
    norm = functools.partial(BatchNormalization, momentum=0.9, epsilon=epsilon)
    features = convolution(images, 64, 7, stride=2, name=f"{prefix}conv1")
    features = layers.ReLU(name=f"{prefix}relu")(norm(name=f"{prefix}bn1")(features))
    # No value is below 0 here, so zero padding is equivalent to -inf
    features = layers.ZeroPadding2D(1, name=f"{prefix}maxpool.pad")(features)
    features = layers.MaxPooling2D(3, strides=2, padding="valid", name=f"{prefix}maxpool")(features)
    stages = []
    for stage, stride in enumerate(stage_strides):
        for block in range(config.blocks[stage]):
            features = _block(
                features,
                config,
                stage,
                norm=norm,
                stride=stride if block == 0 else 1,
                name=f"{prefix}layer{stage + 1}.{block}",
            )
        stages.append(features)
    return stages


def _block(
    inputs: Tensor, config: ResNetConfig, stage: int, *, norm: Callable[..., keras.Layer], stride: int, name: str
) -> Tensor:
    """Return the output of a residual block: two 3 x 3 convolutions, or a bottleneck of three."""
    inner, outer = config.inner_width(stage), config.outer_width(stage)
    if config.bottleneck:
        convolutions = [(inner, 1, 1, 1), (inner, 3, stride, config.groups), (outer, 1, 1, 1)]
    else:
        convolutions = [(outer, 3, stride, 1), (outer, 3, 1, 1)]
    features = inputs
    for number, (width, taps, own_stride, groups) in enumerate(convolutions, start=1):
        if number > 1:
            features = layers.ReLU(name=f"{name}.relu{number - 1}")(features)
        features = convolution(features, width, taps, stride=own_stride, groups=groups, name=f"{name}.conv{number}")
        features = norm(name=f"{name}.bn{number}")(features)
    shortcut = inputs
    if stride != 1 or inputs.shape[-1] != outer:
        shortcut = convolution(inputs, outer, 1, stride=stride, name=f"{name}.downsample.0")
        shortcut = norm(name=f"{name}.downsample.1")(shortcut)
    return layers.ReLU(name=f"{name}.relu")(layers.Add(name=f"{name}.add")([features, shortcut]))


def convolution(inputs: Tensor, filters: int, taps: int, *, name: str, stride: int = 1, **options: Any) -> Tensor:
    """Return a taps x taps convolution padded by (taps - 1) / 2 on each side; without bias unless set in `options`."""
    options = {"use_bias": False, "kernel_initializer": RESIDUAL_INITIALIZER.clone(), **options}
    kind = GroupedConv2D if options.get("groups", 1) > 1 else layers.Conv2D
    if stride == 1 or taps == 1:
        return kind(filters, taps, strides=stride, padding="same", name=name, **options)(inputs)
    padded = layers.ZeroPadding2D(taps // 2, name=f"{name}.pad")(inputs)
    return kind(filters, taps, strides=stride, padding="valid", name=name, **options)(padded)


def freeze(network: keras.Model, *, trainable_stages: int, trains_batch_norm: bool, prefix: str = "") -> None:
    """Freeze all but the last `trainable_stages` of the backbone's five stages, the first of which is the stem.

    Batch norm, in all parts of the network, is trained only if `trains_batch_norm`.
    """
    for layer in network.layers:
        is_frozen = is_in_first_stages(layer, _STAGES - trainable_stages, prefix=prefix)
        if is_frozen or (isinstance(layer, BatchNormalization) and not trains_batch_norm):
            layer.trainable = False


def is_in_first_stages(layer: keras.Layer, stages: int, *, prefix: str = "") -> bool:
    """Return whether a layer belongs to the first `stages` of the backbone's five, the first of which is the stem."""
    firsts = ("conv1", "bn1", *(f"layer{number}." for number in range(1, stages)))
    return stages > 0 and layer.name.startswith(tuple(f"{prefix}{first}" for first in firsts))


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
