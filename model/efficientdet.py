"""EfficientDet (Tan, Pang, Le 2020): EfficientNet, BiFPN, class and box heads."""

from dataclasses import dataclass

import keras

from model.bifpn import BifpnConfig, build_bifpn
from model.efficientnet import build_backbone
from model.heads import HeadConfig, build_box_head, build_class_head
from object_detection.geometry.anchor_grid import AnchorConfig

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
