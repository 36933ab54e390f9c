"""The references' `nms_configs`: what suppresses overlapping boxes, of every family that has suppression."""

from dataclasses import dataclass
from typing import Annotated

from program_support.checked_fields import Count, Positive, Share, one_of


@dataclass(frozen=True, kw_only=True)
class NmsConfigs:
    """Suppression, see object_detection/suppression/. None of iou_thresh and sigma: 0.5; 0 of max_nms_inputs: 5000.

    The defaults are EfficientDet's.
    """

    method: Annotated[str, one_of("hard", "gaussian", "none")] = "gaussian"
    iou_thresh: Share | None = None
    score_thresh: Share | None = None  # None: 0.001
    sigma: Positive | None = None
    max_nms_inputs: Count = 5000
    max_output_size: Count = 100
    per_class: bool = True
