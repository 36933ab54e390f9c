"""The JSON of one image's detections."""

from typing import Any

import numpy as np

from efficientdet.serving.batching import ImageResult


def image_reply(result: ImageResult, *, min_score: float) -> dict[str, Any]:
    """Return the upright size of an image, and its detections with a score of `min_score` or more, by score."""
    names = dict(zip(result.model.class_names.category_ids, result.model.class_names.names, strict=True))
    height, width = result.size
    is_shown = (np.asarray(result.rows.scores) >= min_score) & np.isfinite(result.rows.boxes).all(
        axis=-1
    )  # JSON has no NaN
    rows = result.rows.chosen(np.flatnonzero(is_shown))
    boxes = np.clip(np.asarray(rows.boxes, np.float64)[:, [1, 0, 3, 2]], 0, [width, height, width, height]).round(2)
    columns = (boxes, np.asarray(rows.scores, np.float64).round(5), np.asarray(rows.category_ids))
    detections = [
        {"box": box, "score": score, "class_id": class_id, "class_name": names[class_id]}
        for box, score, class_id in zip(*(column.tolist() for column in columns), strict=True)
    ]
    if rows.masks is not None:
        for detection, mask in zip(detections, rows.masks, strict=True):
            detection["mask"] = mask
    return {"width": width, "height": height, "detections": detections}
