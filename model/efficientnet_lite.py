"""EfficientNet-Lite 0 to 4: EfficientNet for integer arithmetic, the backbones of EfficientDet-Lite.

EfficientNet-B0's blocks without squeeze-and-excitation and with ReLU6. Width and depth are scaled, except for the stem
and the number of blocks of the first and last stage (google/automl, efficientnet_lite_builder). The names of the layers
follow `efficientnet`.
"""

import math
from typing import Any, NamedTuple

import keras

from model.activations import activation_layer
from model.batch_norm import BatchNormalization
from model.depthwise_conv import DepthwiseConv2D
from object_detection.structures import Tensor

SCALES = {  # width and depth relative to B0
    "efficientnet-lite0": (1.0, 1.0),
    "efficientnet-lite1": (1.0, 1.1),
    "efficientnet-lite2": (1.1, 1.2),
    "efficientnet-lite3": (1.2, 1.4),
    "efficientnet-lite4": (1.4, 1.8),
}
_STEM_FILTERS = 32


class _Block(NamedTuple):
    kernel: int
    stride: int
    expansion: int
    filters: int


_STAGES = (  # B0's: the first block, number of blocks
    (_Block(3, 1, 1, 16), 1),
    (_Block(3, 2, 6, 24), 2),
    (_Block(5, 2, 6, 40), 2),
    (_Block(3, 2, 6, 80), 3),
    (_Block(5, 1, 6, 112), 3),
    (_Block(5, 2, 6, 192), 4),
    (_Block(3, 1, 6, 320), 1),
)


def build_lite_backbone(
    name: str,
    image_size: tuple[int, int],
    *,
    survival_prob: float | None = None,
    padding: str = "same",
    epsilon: float = 1e-3,
) -> keras.Model:
    """Return an EfficientNet-Lite with random weights; arguments and result as those of `build_backbone`."""
    images = keras.Input((*image_size, 3))
    inputs, mode = padded_for_stride(images, 3, padding, name=f"{name}.stem.pad")
    stem = keras.layers.Conv2D(_STEM_FILTERS, 3, strides=2, **{**_convolution(f"{name}.stem.conv2d"), "padding": mode})
    features = _activated(stem(inputs), name=f"{name}.stem.tpu_batch_normalization", epsilon=epsilon)
    levels, blocks = [], _scaled_blocks(*SCALES[name])
    for number, block in enumerate(blocks):
        if block.stride > 1:
            levels.append(features)
        drop_rate = 0.0 if survival_prob is None else (1.0 - survival_prob) * number / len(blocks)
        features = _add_block(
            features, block, name=f"{name}.blocks_{number}", drop_rate=drop_rate, padding=padding, epsilon=epsilon
        )
    return keras.Model(images, [*levels, features], name=name)


def _scaled_blocks(width: float, depth: float) -> list[_Block]:
    blocks = []
    for number, (first, repeats) in enumerate(_STAGES):
        if number not in (0, len(_STAGES) - 1):
            repeats = math.ceil(depth * repeats)
        first = first._replace(filters=_rounded(width * first.filters))
        blocks += [first, *[first._replace(stride=1)] * (repeats - 1)]
    return blocks


def _rounded(filters: float) -> int:
    """Round to the nearest multiple of 8 that is at least 90 % of `filters`."""
    nearest = int(filters + 4) // 8 * 8
    return nearest if nearest >= 0.9 * filters else nearest + 8


def padded_for_stride(inputs: Tensor, kernel: int, padding: str, *, name: str) -> tuple[Tensor, str]:
    """Return the inputs of a convolution of stride 2, and its padding in Keras; "symmetric" is PyTorch's."""
    if padding == "same":
        return inputs, "same"
    return keras.layers.ZeroPadding2D(kernel // 2, name=name)(inputs), "valid"


def _add_block(inputs: Tensor, block: _Block, *, name: str, drop_rate: float, padding: str, epsilon: float) -> Tensor:
    """Add expansion, depthwise convolution and projection; and the inputs, if they have the shape of the outputs."""
    convolutions = iter((f"{name}.conv2d", f"{name}.conv2d_1"))
    norms = iter(f"{name}.tpu_batch_normalization{number}" for number in ("", "_1", "_2"))
    features = inputs
    if block.expansion > 1:
        expand = keras.layers.Conv2D(block.expansion * inputs.shape[-1], 1, **_convolution(next(convolutions)))
        features = _activated(expand(features), name=next(norms), epsilon=epsilon)
    mode = "same"
    if block.stride > 1:
        features, mode = padded_for_stride(features, block.kernel, padding, name=f"{name}.pad")
    depthwise = DepthwiseConv2D(
        block.kernel,
        strides=block.stride,
        padding=mode,
        use_bias=False,
        depthwise_initializer=_kernel_initializer(),
        name=f"{name}.depthwise_conv2d",
    )
    features = _activated(depthwise(features), name=next(norms), epsilon=epsilon)
    project = keras.layers.Conv2D(block.filters, 1, **_convolution(next(convolutions)))
    features = BatchNormalization(name=next(norms), epsilon=epsilon)(project(features))
    if features.shape != inputs.shape:
        return features
    if drop_rate:
        features = keras.layers.Dropout(drop_rate, noise_shape=(None, 1, 1, 1), name=f"{name}.drop")(features)
    return keras.layers.Add(name=f"{name}.add")([features, inputs])


def _activated(features: Tensor, *, name: str, epsilon: float) -> Tensor:
    return activation_layer("relu6")(BatchNormalization(name=name, epsilon=epsilon)(features))


def _convolution(name: str) -> dict[str, Any]:
    return {"padding": "same", "use_bias": False, "kernel_initializer": _kernel_initializer(), "name": name}


def _kernel_initializer() -> keras.Initializer:
    return keras.initializers.VarianceScaling(2.0, mode="fan_out", distribution="untruncated_normal")
