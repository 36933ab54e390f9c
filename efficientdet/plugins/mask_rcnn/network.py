"""Mask R-CNN (He et al. 2017) on a ResNet with a feature pyramid, as in torchvision. Layers have torch's names.

Two networks share the layers: the complete one for detection, and its first stage, up to the outputs for proposals. In
training the second stage is called for randomly sampled regions (`RegionHeads`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras
from keras import layers

from efficientdet.plugins.mask_rcnn.presets import proposal_sizes
from efficientdet.plugins.mask_rcnn.region_layers import AlignedRegions, DetectedRegions, MasksOfClasses, Proposals
from efficientdet.plugins.mask_rcnn.regions import REGION_SUPPRESSION, ProposalConfig
from model.resnet import WIDTH, build_feature_pyramid, build_resnet, freeze
from object_detection.geometry.anchor_grid import AnchorGrid, grid_of_levels, rounded_levels
from object_detection.structures import Tensor
from object_detection.suppression.tensor_suppression import SuppressionConfig

BODY, PYRAMID = "backbone.body.", "backbone.fpn."  # prefixes of layer names
FINEST = 2  # level of the pyramid
REGION_SIDE, MASK_REGION_SIDE = 7, 14  # cells per side of a region's features, for its box and for its mask
MASK_SIDE = 2 * MASK_REGION_SIDE
_REPRESENTATION = 1024
_MASK_CONVOLUTIONS = 4


@dataclass(frozen=True, kw_only=True)
class MaskRcnnConfig:
    """Shape of the network, proposals of the first stage and post-processing of the second.

    Attributes:
        anchor_scale: side of the square anchor of a level in cells.
        trainable_stages: number of trainable stages of the backbone's five, counted from the last.
    """

    backbone: str
    image_size: tuple[int, int]  # height, width
    num_classes: int  # the background is not counted
    epsilon: float = 1e-5  # batch normalization's
    trainable_stages: int = 3
    trains_batch_norm: bool = False
    anchor_scale: float = 8.0
    proposals: ProposalConfig = field(default_factory=ProposalConfig)
    suppression: SuppressionConfig = REGION_SUPPRESSION


class MaskRcnn(NamedTuple):
    """The networks of Mask R-CNN and their anchors."""

    network: keras.Model
    first_stage: keras.Model
    heads: "RegionHeads"
    grid: AnchorGrid


def build_mask_rcnn(config: MaskRcnnConfig, *, precision: str = "float32") -> MaskRcnn:
    """Return the networks from normalized images, in the compute dtype of `precision`.

    network: [B, H, W, 3] and sizes [B, 2] int32 of the valid area -> boxes [B, D, 4], scores [B, D], classes [B, D]
    int32 and masks [B, D, 28, 28], probabilities, all float32 except the classes. first_stage: [B, H, W, 3] -> levels
    [B, h, w, C] of P2 to P5, logits [B, A] and deltas [B, A, 4] of the anchors in the
    order level, row, column, shape.
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        images = keras.Input((*config.image_size, 3), name="images")
        sizes = keras.Input((2,), dtype="int32", name="sizes")
        features = build_resnet(images, config.backbone, prefix=BODY, epsilon=config.epsilon)
        levels = build_feature_pyramid(features, prefix=PYRAMID)
        coarsest = layers.MaxPooling2D(1, strides=2, name=f"{PYRAMID}pool")(levels[-1])
        cells = [tuple(level.shape[1:3]) for level in (*levels, coarsest)]
        anchors = rounded_levels(config.image_size, cells, sizes=proposal_sizes(config.anchor_scale))
        grid = grid_of_levels(anchors)
        logits, deltas = _proposal_head([*levels, coarsest], shapes=len(anchors[0].shapes))
        heads = RegionHeads(config.num_classes, image_size=config.image_size)
        boxes, valid = Proposals(grid, config.proposals, name="proposals")([logits, deltas, sizes])
        detected_regions = DetectedRegions(config.suppression, name="detections")(
            [*heads.classes_and_deltas(levels, boxes), boxes, valid, sizes]
        )
        masks = heads.masks(levels, detected_regions[0], detected_regions[1])
        masks = MasksOfClasses(name="masks")([masks, detected_regions[1], detected_regions[2]])
        network = keras.Model([images, sizes], [*detected_regions, masks], name="mask_rcnn")
        first_stage = keras.Model(images, [*levels, logits, deltas], name="first_stage")
    finally:
        keras.config.set_dtype_policy(previous)
    freeze(network, trainable_stages=config.trainable_stages, trains_batch_norm=config.trains_batch_norm, prefix=BODY)
    return MaskRcnn(network, first_stage, heads, grid)


def _proposal_head(levels: Sequence[Tensor], *, shapes: int) -> tuple[Tensor, Tensor]:
    """Return logits [B, A] and deltas [B, A, 4] by layers that all levels share."""
    options = {"kernel_initializer": keras.initializers.RandomNormal(stddev=0.01)}
    hidden = layers.Conv2D(WIDTH, 3, padding="same", name="rpn.head.conv", **options)
    predictors = [
        layers.Conv2D(shapes * values, 1, name=f"rpn.head.{name}", **options)
        for name, values in (("cls_logits", 1), ("bbox_pred", 4))
    ]
    outputs: list[list[Tensor]] = [[], []]
    for level, features in enumerate(levels, start=FINEST):
        features = layers.ReLU(name=f"rpn.head.relu.p{level}")(hidden(features))
        for flat, predict, shape in zip(outputs, predictors, ((-1,), (-1, 4)), strict=True):
            flat.append(layers.Reshape(shape, name=f"{predict.name}.flat.p{level}")(predict(features)))
    return tuple(
        layers.Concatenate(axis=1, name=f"{predict.name}.all_levels")(flat)
        for flat, predict in zip(outputs, predictors, strict=True)
    )


class RegionHeads:
    """The second stage: layers for proposals in detection, and for sampled regions in training.

    Regions are boxes [B, N, 4] in pixels of the input.
    """

    def __init__(self, num_classes: int, *, image_size: tuple[int, int]):
        def dense(size: int, name: str, **options: Any) -> keras.Layer:
            return layers.Dense(size, name=f"roi_heads.{name}", **options)

        torch_linear = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")  # torch's default initialization
        self.num_classes, self._image_size = num_classes, image_size
        self._flatten = layers.Flatten(name="roi_heads.box_head.flatten")
        self._hidden = [
            dense(_REPRESENTATION, f"box_head.fc{number}", activation="relu", kernel_initializer=torch_linear)
            for number in (6, 7)
        ]
        self._classes = dense(
            num_classes + 1, "box_predictor.cls_score", kernel_initializer=torch_linear, dtype="float32"
        )
        self._deltas = dense(
            4 * (num_classes + 1), "box_predictor.bbox_pred", kernel_initializer=torch_linear, dtype="float32"
        )
        relu_fan_out = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
        self._convolutions = [
            layers.Conv2D(
                WIDTH,
                3,
                padding="same",
                activation="relu",
                kernel_initializer=relu_fan_out,
                name=f"roi_heads.mask_head.mask_fcn{number}",
            )
            for number in range(1, _MASK_CONVOLUTIONS + 1)
        ]
        self._upsampled = layers.Conv2DTranspose(
            WIDTH,
            2,
            strides=2,
            activation="relu",
            kernel_initializer=relu_fan_out,
            name="roi_heads.mask_predictor.conv5_mask",
        )
        # Not fan_out as in torchvision: with few classes the initial mask loss would be 9 and dominate the others
        relu_fan_in = keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")
        self._mask_logits = layers.Conv2D(
            num_classes + 1,
            1,
            kernel_initializer=relu_fan_in,
            dtype="float32",
            name="roi_heads.mask_predictor.mask_fcn_logits",
        )

    def classes_and_deltas(self, levels: Sequence[Tensor], boxes: Tensor) -> list[Tensor]:
        """Return class logits [B N, K + 1], the background first, and deltas [B N, 4 (K + 1)] per class."""
        pool = AlignedRegions(REGION_SIDE, self._image_size, name="roi_heads.box_roi_pool")
        features = self._flatten(pool([*levels, boxes]))
        for layer in self._hidden:
            features = layer(features)
        return [self._classes(features), self._deltas(features)]

    def masks(self, levels: Sequence[Tensor], boxes: Tensor, scores: Tensor) -> Tensor:
        """Return mask logits [R, 28, 28, K + 1] of the regions whose score [B, N] is above 0, see `AlignedRegions`."""
        pool = AlignedRegions(MASK_REGION_SIDE, self._image_size, name="roi_heads.mask_roi_pool")
        features = pool([*levels, boxes, scores])
        for layer in (*self._convolutions, self._upsampled):
            features = layer(features)
        return self._mask_logits(features)
