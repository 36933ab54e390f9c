"""Classes of values that presets have: choices of quickstart.py, and hyperparameters of suppression.

The defaults are those of EfficientDet; a family states what differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from program_support.checked_fields import Count, Positive, Share, one_of

if TYPE_CHECKING:
    from object_detection.suppression.tensor_suppression import SuppressionConfig


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
    """

    rate: LearningRate
    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    long_settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QuickstartRecipe:
    """Settings of a family's short training on own data.

    Attributes:
        settings: hyperparameters of every quick start.
        random: from random weights. Where the presets freeze batch norm or stages of the backbone, its settings train
            everything.
        backbone: from a backbone pretrained on ImageNet. None: as from random weights.
        detector: from a pretrained detector.
        min_side: the smallest side of the input in pixels.
        fixed_share: share of the time of a step with an input of 256 pixels that does not depend on its size.
        efficiency: speed of a training step relative to the speed that a quick start measures, of products of matrices
            or of a block with a depthwise convolution.
        evaluation_cost: time to evaluate an image relative to a training step's time per image.
        stretches: whether images are stretched to the input, which then gets their aspect ratio.
        detectors: model name -> name of its published weights, where that is another name.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    random: StartRecipe
    backbone: StartRecipe | None = None
    detector: StartRecipe
    min_side: int = 128
    fixed_share: float = 0.0
    efficiency: float = 0.35
    evaluation_cost: float = 0.5
    stretches: bool = False
    detectors: Mapping[str, str] = field(default_factory=dict)

    def start(self, kind: str) -> StartRecipe:
        """Return the choices for initial weights of a kind: random, backbone or detector."""
        return {"random": self.random, "backbone": self.backbone or self.random, "detector": self.detector}[kind]


@dataclass(frozen=True, kw_only=True)
class NmsConfigs:
    """Hyperparameters of non-maximum suppression (object_detection/suppression/), with EfficientDet's defaults."""

    method: Annotated[str, one_of("hard", "gaussian", "none")] = "gaussian"
    iou_thresh: Share | None = None  # IoU from which a box is suppressed; None: 0.5
    score_thresh: Share | None = None  # lowest score of a detection; None: 0.001
    sigma: Positive | None = None  # of gaussian (soft suppression); None: 0.5
    max_nms_inputs: Count = 5000  # candidates per image with the highest scores
    max_output_size: Count = 100  # detections per image
    per_class: bool = True  # suppress only boxes of the same class


def suppression_config(nms: NmsConfigs, *, drops_equal: bool = False, **others: Any) -> "SuppressionConfig":
    """Return the configuration of non-maximum suppression.

    As in the references, None and a score threshold of 0 of soft suppression select the default.

    Args:
        nms: the hyperparameters `nms_configs`.
        drops_equal: whether a box with an IoU of exactly `iou_thresh` is suppressed too.
        others: further fields of `SuppressionConfig`.
    """
    import numpy as np  # here: scripts/get_weights.sh runs before anything is installed

    from object_detection.suppression.tensor_suppression import SuppressionConfig

    iou_threshold = 0.5 if nms.iou_thresh is None else nms.iou_thresh
    if drops_equal:  # IoUs are float32: none lies between the threshold and the next smaller number
        iou_threshold = float(np.nextafter(np.float32(iou_threshold), np.float32(0)))
    score_threshold = nms.score_thresh
    if score_threshold is None or (nms.method == "gaussian" and score_threshold == 0):
        score_threshold = 0.001
    return SuppressionConfig(
        method=nms.method,
        per_class=nms.per_class,
        candidates=nms.max_nms_inputs,
        max_detections=nms.max_output_size,
        iou_threshold=iou_threshold,
        score_threshold=score_threshold,
        sigma=0.5 if nms.sigma is None else nms.sigma,
        **others,
    )
