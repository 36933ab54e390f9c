"""Suppression configuration of a family, from its `nms_configs`."""

from typing import Any

import numpy as np

from efficientdet.families.nms_configs import NmsConfigs
from object_detection.suppression.tensor_suppression import SuppressionConfig


def suppression_config(nms: NmsConfigs, *, drops_equal: bool = False, **others: Any) -> SuppressionConfig:
    """Return the configuration of non-maximum suppression.

    As in the references, None and a score threshold of 0 of soft suppression select the default.

    Args:
        nms: the hyperparameters `nms_configs`.
        drops_equal: whether a box with an IoU of exactly `iou_thresh` is suppressed too.
        others: further fields of `SuppressionConfig`.
    """
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
