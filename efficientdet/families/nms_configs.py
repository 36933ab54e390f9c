"""The hyperparameters `nms_configs` of the references, and the configuration of suppression that they state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from program_support.checked_fields import Count, Positive, Share, one_of

if TYPE_CHECKING:
    from object_detection.suppression.tensor_suppression import SuppressionConfig


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
