"""Choices of quickstart.py that depend on the family: each family declares them as data.

The defaults are the choices for EfficientDet; a family states what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """Peak learning rate: proportional to the batch size, up to a maximum."""

    per_image: float
    maximum: float

    def of(self, batch_size: int) -> float:
        """Return the peak learning rate for a batch size."""
        return min(self.per_image * batch_size, self.maximum)


@dataclass(frozen=True, kw_only=True)
class QuickstartRecipe:
    """Settings of a family's short training on own data.

    Attributes:
        settings: hyperparameters of every quick start.
        random_settings: further hyperparameters for training without a pretrained detector. Where the presets freeze
            batch norm or stages of the backbone, these train everything.
        random_rate: learning rate for training without a pretrained detector.
        pretrained_rate: learning rate for training from a pretrained detector.
        random_steps: number of steps for a good AP with an input of 256 pixels and objects of 16, without a pretrained
            detector.
        pretrained_steps: the same, from a pretrained detector.
        min_side: the smallest side of the input in pixels.
        fixed_share: share of the time of a step with an input of 256 pixels that does not depend on its size.
        evaluation_cost: time to evaluate an image relative to a training step's time per image.
        stretches: whether images are stretched to the input, which then gets their aspect ratio.
        detectors: model name -> name of its published weights, where that is another name.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    random_settings: Mapping[str, Any]
    random_rate: LearningRate
    pretrained_rate: LearningRate
    random_steps: int = 2200  # docs/measurements/accuracy.md
    pretrained_steps: int = 250
    min_side: int = 128
    fixed_share: float = 0.0
    evaluation_cost: float = 0.5
    stretches: bool = False
    detectors: Mapping[str, str] = field(default_factory=dict)
