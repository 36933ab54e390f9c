"""EfficientDet's anchors by its hyperparameters; free of Keras."""

from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters, normalised_aspect_ratios
from object_detection.geometry.anchor_grid import AnchorConfig


def anchor_config(hparams: EfficientDetHyperparameters) -> AnchorConfig:
    """The anchors."""
    return AnchorConfig(min_level=hparams.min_level, max_level=hparams.max_level, num_scales=hparams.num_scales,
                        aspect_ratios=normalised_aspect_ratios(hparams.aspect_ratios), anchor_scale=hparams.anchor_scale)
