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
class StartRecipe:
    """Choices that depend on what a training starts from.

    Attributes:
        rate: learning rate.
        steps: number of steps for a good AP with an input of 256 pixels and objects of 16.
        settings: further hyperparameters.
        long_settings: further hyperparameters where there is time for two trainings.
        smaller_input_first: whether a training with a smaller input comes first.
    """

    rate: LearningRate
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    long_settings: Mapping[str, Any] = field(default_factory=dict)
    smaller_input_first: bool = True


@dataclass(frozen=True, kw_only=True)
class QuickstartRecipe:
    """Settings of a family's short training on own data.

    Attributes:
        settings: hyperparameters of every quick start.
        random: from random weights. Where the presets freeze batch norm or stages of the backbone, its settings train
            everything.
        backbone: from a backbone pretrained on ImageNet. None: as from random weights.
        starter: from the small detector that this package has, of other classes. None: as from a backbone.
        detector: from a pretrained detector.
        min_side: the smallest side of the input in pixels.
        fixed_share: share of the time of a step with an input of 256 pixels that does not depend on its size.
        evaluation_cost: time to evaluate an image relative to a training step's time per image.
        stretches: whether images are stretched to the input, which then gets their aspect ratio.
        detectors: model name -> name of its published weights, where that is another name.
        starters: model name -> name of its detector in this package.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    random: StartRecipe
    backbone: StartRecipe | None = None
    starter: StartRecipe | None = None
    detector: StartRecipe
    min_side: int = 128
    fixed_share: float = 0.0
    evaluation_cost: float = 0.5
    stretches: bool = False
    detectors: Mapping[str, str] = field(default_factory=dict)
    starters: Mapping[str, str] = field(default_factory=dict)

    def start(self, kind: str) -> StartRecipe:
        """Return the choices for initial weights of a kind: random, backbone, starter or detector."""
        backbone = self.backbone or self.random
        starter = self.starter or backbone
        return {"random": self.random, "backbone": backbone, "starter": starter, "detector": self.detector}[kind]
