"""The references' `nms_configs`: what suppresses overlapping boxes, of every family that has suppression."""

from dataclasses import dataclass

from efficientdet.families.limits import ABOVE_ZERO, SHARE, Limit, at_least, one_of

NMS_LIMITS: dict[str, Limit] = {
    "nms_configs.method": one_of("hard", "gaussian", "none"),
    "nms_configs.iou_thresh": SHARE,
    "nms_configs.score_thresh": SHARE,
    "nms_configs.sigma": ABOVE_ZERO,
    "nms_configs.max_nms_inputs": at_least(1),
    "nms_configs.max_output_size": at_least(1),
}


@dataclass(frozen=True, kw_only=True)
class NmsConfigs:
    """Suppression, see object_detection/suppression/. None of iou_thresh and sigma: 0.5; 0 of max_nms_inputs: 5000.

    The defaults are EfficientDet's.
    """

    method: str = "gaussian"
    iou_thresh: float | None = None
    score_thresh: float | None = None  # None: 0.001
    sigma: float | None = None
    max_nms_inputs: int = 5000
    max_output_size: int = 100
    per_class: bool = True
