"""SSD300 (Liu et al. 2016) on a ResNet, as in MLPerf's reference: a map of the backbone, five further maps, heads.

Layer names are those of the reference, but torchvision's in the backbone.
"""

from typing import Any

import keras
from keras import initializers, layers

from efficientdet.plugins.ssd.default_boxes import SSD300_BOXES_PER_CELL
from model.resnet import build_resnet, convolution, freeze
from object_detection.structures import Tensor

BACKBONE_PREFIX = "backbone."
_STAGE_STRIDES = (1, 2, 1)  # the last stage that is used keeps the previous size: stride 8
# Widths of 1 x 1 and 3 x 3, stride
_EXTRA_MAPS = ((256, 512, 2), (256, 512, 2), (128, 256, 2), (128, 256, 1), (128, 256, 1))


def build_ssd(
    image_size: tuple[int, int],
    *,
    num_classes: int,
    backbone: str = "resnet34",
    trains_batch_norm: bool = True,
    precision: str = "float32",
) -> keras.Model:
    """Return the network from normalized images to raw outputs.

    A functional model: [B, H, W, 3] float -> class logits [B, A, 1 + num_classes], the background's first, and box
    deltas [B, A, 4], in the compute dtype of `precision`. Order of A: map, shape, row, column, as in `ssd300_levels`.

    Raises:
        InputError: the image is too small for the last map.
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        images = keras.Input((*image_size, 3), name="images")
        maps = [build_resnet(images, backbone, prefix=BACKBONE_PREFIX, stage_strides=_STAGE_STRIDES)[-1]]
        for number, (narrow, wide, stride) in enumerate(_EXTRA_MAPS):
            maps.append(_smaller(maps[-1], narrow, wide, stride=stride, name=f"additional_blocks.{number}"))
        class_logits, box_deltas = (
            layers.Concatenate(axis=1, name=name)(
                [
                    _predictions(features, values, boxes=boxes, name=f"{name}.{number}")
                    for number, (features, boxes) in enumerate(zip(maps, SSD300_BOXES_PER_CELL, strict=True))
                ]
            )
            for name, values in (("conf", 1 + num_classes), ("loc", 4))
        )
        network = keras.Model(images, [class_logits, box_deltas], name="ssd")
    finally:
        keras.config.set_dtype_policy(previous)
    freeze(network, trainable_stages=5, trains_batch_norm=trains_batch_norm)
    return network


def _smaller(features: Tensor, narrow: int, wide: int, *, stride: int, name: str) -> Tensor:
    """Return the next map: half the size, or two cells less per side if the stride is 1."""
    features = convolution(features, narrow, 1, name=f"{name}.0", activation="relu", **_initial(features.shape[-1], 1))
    options = {"name": f"{name}.2", "activation": "relu", **_initial(narrow, 3)}
    if stride == 1:
        return layers.Conv2D(wide, 3, padding="valid", **options)(features)
    return convolution(features, wide, 3, stride=stride, **options)


def _predictions(features: Tensor, values: int, *, boxes: int, name: str) -> Tensor:
    """Return predictions [B, boxes x h x w, values] from [B, h, w, C]. A channel is value x boxes + box."""
    channels = features.shape[-1]
    predicted = convolution(features, values * boxes, 3, name=name, **_initial(channels, 3))
    by_cell = layers.Reshape((-1, values, boxes), name=f"{name}.cells")(predicted)
    return layers.Reshape((-1, values), name=f"{name}.boxes")(layers.Permute((3, 1, 2), name=f"{name}.by_box")(by_cell))


def _initial(channels: int, taps: int) -> dict[str, Any]:
    """Return the initializers of a convolution as in the reference: Glorot and Bengio's kernels, torch's biases."""
    most = (channels * taps**2) ** -0.5
    return {
        "use_bias": True,
        "kernel_initializer": initializers.GlorotUniform(),
        "bias_initializer": initializers.RandomUniform(-most, most),
    }
