"""EfficientDet (Tan, Pang, Le 2020): EfficientNet, BiFPN, class and box heads.

The backbones are B0 to B7 from keras.applications, and Lite 0 to 4. Layer names are those of the published TensorFlow
checkpoints, with dots instead of slashes, for instance `efficientnet-b0.blocks_3.conv2d`.
"""

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

from model.batch_norm import BatchNormalization
from model.bifpn import BifpnConfig, build_bifpn
from model.detection_model import set_value
from model.fast_layers import DepthwiseConv2D, SiLU, activation_layer
from model.heads import HeadConfig, build_box_head, build_class_head
from object_detection.geometry.anchor_grid import AnchorConfig
from object_detection.structures import Tensor
from program_support.errors import InputError

_APPLICATIONS_DROP_RATE = 0.2  # drop rate of keras.applications
_NAME = re.compile(r"efficientnet-b([0-7])")
_BLOCK_LAYER = re.compile(r"block(?P<stage>\d)(?P<repeat>[a-z])_(?P<role>\w+)")
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


def build_backbone(
    name: str,
    image_size: tuple[int, int],
    *,
    survival_prob: float | None = None,
    padding: str = "same",
    epsilon: float = 1e-3,
) -> keras.Model:
    """Return a model from normalized images to features of levels 1 to 5, strides 2 to 32.

    [B, H, W, 3] -> five tensors, each the last one before the next change of stride.

    Args:
        name: "efficientnet-b0" .. "efficientnet-b7" or "efficientnet-lite0" .. "efficientnet-lite4".
        image_size: height and width.
        survival_prob: stochastic depth (None: none).
        padding: how convolutions of stride 2 pad: "same" as in TensorFlow, or "symmetric" as in PyTorch.
        epsilon: batch normalization's.

    Raises:
        InputError: unknown name.
    """
    if name in SCALES:
        return _build_lite_backbone(name, image_size, survival_prob=survival_prob, padding=padding, epsilon=epsilon)
    if not (known := _NAME.fullmatch(name)):
        raise InputError(
            f"backbone {name!r}; expected efficientnet-b0 to efficientnet-b7, or efficientnet-lite0 to "
            "efficientnet-lite4"
        )
    application = getattr(keras.applications, f"EfficientNetB{known[1]}")
    with keras.StatelessScope():
        original = application(include_top=False, weights=None, input_shape=(*image_size, 3))
        for variable in original.variables:  # only its layers are used
            set_value(variable, np.zeros(variable.shape, variable.dtype))
    names = _published_names(original, name)

    def clone(layer: keras.Layer) -> keras.Layer:
        config = {**layer.get_config(), "name": names.get(layer.name, layer.name), "dtype": keras.config.dtype_policy()}
        return _cloned(layer, config, survival_prob=survival_prob, padding=padding, epsilon=epsilon)

    cloned = keras.models.clone_model(original, clone_function=clone)
    outputs = [cloned.get_layer(names.get(tap, tap)).output for tap in _last_layer_of_each_level(original)]
    return keras.Model(cloned.input, outputs, name=name)


def _cloned(
    layer: keras.Layer, config: dict[str, Any], *, survival_prob: float | None, padding: str, epsilon: float
) -> keras.Layer:
    if isinstance(layer, keras.layers.BatchNormalization):
        return BatchNormalization.from_config({**config, "epsilon": epsilon})
    if isinstance(layer, keras.layers.Activation) and layer.activation is keras.activations.silu:
        return SiLU(name=config["name"])
    if isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)):
        return keras.layers.Identity(name=config["name"])  # the detector normalizes: padding must stay zero
    if isinstance(layer, keras.layers.ZeroPadding2D):  # precedes a convolution of stride 2
        if padding == "symmetric":
            return keras.layers.ZeroPadding2D(layer.padding[0][1], name=config["name"])
        return keras.layers.Identity(name=config["name"])  # the next convolution pads by the same width
    if isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D):
        strided = padding == "symmetric" and layer.strides != (1, 1)
        kind = DepthwiseConv2D if isinstance(layer, keras.layers.DepthwiseConv2D) else keras.layers.Conv2D
        return kind.from_config({**config, "padding": "valid" if strided else "same"})
    if isinstance(layer, keras.layers.Dropout):
        share = layer.rate / _APPLICATIONS_DROP_RATE  # grows linearly from the first block to the last
        config["rate"] = 0.0 if survival_prob is None else (1.0 - survival_prob) * share
        return (
            keras.layers.Dropout.from_config(config) if config["rate"] else keras.layers.Identity(name=config["name"])
        )
    return type(layer).from_config(config)


def _published_names(original: keras.Model, name: str) -> dict[str, str]:
    """Return the name of each layer of keras.applications in the published checkpoints, with dots for slashes."""
    blocks = sorted(
        {match["stage"] + match["repeat"] for layer in original.layers if (match := _BLOCK_LAYER.fullmatch(layer.name))}
    )
    names = {"stem_conv": f"{name}.stem.conv2d", "stem_bn": f"{name}.stem.tpu_batch_normalization"}
    existing = {layer.name for layer in original.layers}
    for number, block in enumerate(blocks):
        expands = f"block{block}_expand_conv" in existing
        convs, norms = iter(("conv2d", "conv2d_1")), iter(("", "_1", "_2"))
        roles: dict[str, str] = {}
        if expands:
            roles |= {"expand_conv": next(convs), "expand_bn": "tpu_batch_normalization" + next(norms)}
        roles |= {"dwconv": "depthwise_conv2d", "bn": "tpu_batch_normalization" + next(norms)}
        roles |= {"se_reduce": "se.conv2d", "se_expand": "se.conv2d_1"}
        roles |= {"project_conv": next(convs), "project_bn": "tpu_batch_normalization" + next(norms)}
        names |= {f"block{block}_{role}": f"{name}.blocks_{number}.{suffix}" for role, suffix in roles.items()}
    return names


def _last_layer_of_each_level(original: keras.Model) -> list[str]:
    """Return the names of the layers whose outputs are levels 1 to 5: the ends of stages 1, 2, 3, 5 and 7."""
    last = {}
    for layer in original.layers:
        match = _BLOCK_LAYER.fullmatch(layer.name)
        if match and match["role"] in ("project_bn", "add"):
            last[match["stage"]] = layer.name
    return [last[stage] for stage in "12357"]


def _build_lite_backbone(
    name: str,
    image_size: tuple[int, int],
    *,
    survival_prob: float | None = None,
    padding: str = "same",
    epsilon: float = 1e-3,
) -> keras.Model:
    """Return an EfficientNet-Lite with random weights: EfficientNet for integer arithmetic.

    EfficientNet-B0's blocks without squeeze-and-excitation and with ReLU6. Width and depth are scaled, except for the
    stem and the number of blocks of the first and last stage (google/automl, efficientnet_lite_builder).
    """
    images = keras.Input((*image_size, 3))
    inputs, mode = _padded_for_stride(images, 3, padding, name=f"{name}.stem.pad")
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


def _padded_for_stride(inputs: Tensor, kernel: int, padding: str, *, name: str) -> tuple[Tensor, str]:
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
        features, mode = _padded_for_stride(features, block.kernel, padding, name=f"{name}.pad")
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


_BACKBONE_LEVELS = 5


@dataclass(frozen=True, kw_only=True)
class EfficientDetConfig:
    """Shape of the network; `DenseDetectorConfig` configures training and post-processing."""

    backbone: str
    image_size: tuple[int, int]  # height, width
    num_classes: int
    bifpn: BifpnConfig
    head: HeadConfig
    anchors: AnchorConfig
    survival_prob: float | None = None
    backbone_epsilon: float = 1e-3  # the backbone's batch normalization


def build_efficientdet(config: EfficientDetConfig, *, precision: str = "float32") -> keras.Model:
    """Return the network from normalized images to raw outputs.

    A functional model: [B, H, W, 3] float -> class logits [B, A, K] and box deltas [B, A, 4], in the compute dtype of
    `precision` ("float32", "mixed_float16" or "mixed_bfloat16"). Order of A: level, row, column, anchor.
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        backbone = build_backbone(
            config.backbone,
            config.image_size,
            survival_prob=config.survival_prob,
            padding=config.bifpn.padding,
            epsilon=config.backbone_epsilon,
        )
        last = min(config.bifpn.max_level, _BACKBONE_LEVELS)
        features = backbone.outputs[config.bifpn.min_level - 1 : last]
        pyramid = build_bifpn(features, config.bifpn)
        class_logits = build_class_head(
            pyramid, config.head, num_anchors=config.anchors.per_cell, num_classes=config.num_classes
        )
        box_deltas = build_box_head(pyramid, config.head, num_anchors=config.anchors.per_cell)
        return keras.Model(backbone.input, [class_logits, box_deltas], name="efficientdet")
    finally:
        keras.config.set_dtype_policy(previous)
