"""How a family's outputs are read, from its `nms_configs`."""

from typing import Any

from efficientdet.configuration.nms_configs import NmsConfigs
from object_detection.suppression import SuppressionConfig


def suppression_config(nms: NmsConfigs, **others: Any) -> SuppressionConfig:
    """The references' None means their own default, as does a threshold of 0 of soft suppression; `others` are the fields of
    `SuppressionConfig` that `nms_configs` has none for."""
    unset = nms.score_thresh is None or (nms.method == "gaussian" and nms.score_thresh == 0)
    return SuppressionConfig(
        method=nms.method, per_class=nms.per_class, candidates=nms.max_nms_inputs, max_detections=nms.max_output_size,
        iou_threshold=0.5 if nms.iou_thresh is None else nms.iou_thresh,
        score_threshold=0.001 if unset else nms.score_thresh,
        sigma=0.5 if nms.sigma is None else nms.sigma, **others)
