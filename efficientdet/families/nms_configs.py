"""The hyperparameters `nms_configs` of the references, for non-maximum suppression."""

from dataclasses import dataclass
from typing import Annotated

from program_support.checked_fields import Count, Positive, Share, one_of


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
