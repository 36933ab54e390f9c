"""Detections as JSON: the form that docs/serve.md and /openapi.json describe."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.reports.drawing import class_colour
from efficientdet.serving.batching import Found


def image_reply(found: Found, *, names: Mapping[int, str], min_score: float) -> dict[str, Any]:
    """One image: its size upright, and what scores at least `min_score`, best first. Boxes: 2 decimals, scores: 5."""
    height, width = found.size
    kept = (np.asarray(found.rows.scores) >= min_score) & np.isfinite(found.rows.boxes).all(axis=-1)  # JSON knows no NaN
    rows = found.rows.chosen(np.flatnonzero(kept))
    boxes = np.clip(np.asarray(rows.boxes, np.float64)[:, [1, 0, 3, 2]], 0, [width, height, width, height]).round(2)
    columns = (boxes, np.asarray(rows.scores, np.float64).round(5), np.asarray(rows.category_ids))
    detections = [{"box": box, "score": score, "class_id": class_id, "class_name": names[class_id]}
                  for box, score, class_id in zip(*(column.tolist() for column in columns), strict=True)]
    if rows.masks is not None:
        for detection, mask in zip(detections, rows.masks, strict=True):
            detection["mask"] = mask
    return {"width": width, "height": height, "detections": detections}


def classes_reply(class_names: ClassNames) -> list[dict[str, Any]]:
    """Every class with its colour, that of the drawings of infer.py."""
    return [{"id": number, "name": name, "colour": "#{:02x}{:02x}{:02x}".format(*class_colour(index))}
            for index, (number, name) in enumerate(zip(class_names.category_ids, class_names.names, strict=True))]
