"""Detections on their way to a measure or a file: one row each, with the ids the data set itself uses."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from object_detection.errors import InputError

TESTDEV_FILE_NAME = "detections_test-dev2017_test_results.json"  # the name the COCO server asks for


class DetectionRows(NamedTuple):
    """Detections of I images, N in all, in the order found (best first within an image)."""

    image_ids: np.ndarray  # [N] int64
    boxes: np.ndarray  # [N, 4] float32, yxyx original pixels
    scores: np.ndarray  # [N] float32
    category_ids: np.ndarray  # [N] int64, the data set's own
    evaluated_ids: np.ndarray  # [I] int64, images looked at, also those without a detection


class CocoResults:
    """Collects the detections of an evaluation, batch by batch, each image once."""

    def __init__(self):
        self._parts: list[DetectionRows] = []
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """How many images were looked at, those without detections among them."""
        return len(self._seen)

    def add(self, image_ids, boxes, *, scores, category_ids, valid) -> None:
        """Add a batch, left out where not `valid`.

        image_ids [B] integer; boxes [B, D, 4] yxyx in pixels of the original image; scores, category_ids (the data
        set's own), valid [B, D]. Raises InputError where an image comes a second time, ValueError for ids that are not
        integers or for boxes or scores that are not finite.
        """
        image_ids, valid = np.asarray(image_ids), np.asarray(valid, bool)
        if not np.issubdtype(image_ids.dtype, np.integer):
            raise ValueError(f"image ids are {image_ids.dtype}; wanted integers (a float32 id is rounded)")
        rows = DetectionRows(
            image_ids=np.repeat(image_ids.astype(np.int64), valid.sum(axis=1)),
            boxes=np.asarray(boxes, np.float32)[valid],
            scores=np.asarray(scores, np.float32)[valid],
            category_ids=np.asarray(category_ids)[valid].astype(np.int64),
            evaluated_ids=image_ids.astype(np.int64),
        )
        self.add_rows(rows)

    def add_rows(self, rows: DetectionRows) -> None:
        """Add what another rank collected, or a batch in the form of rows; raises as `add` does."""
        finite = np.isfinite(rows.boxes).all(axis=-1) & np.isfinite(rows.scores)
        if not finite.all():
            raise ValueError(f"a box or a score is not finite in image {rows.image_ids[~finite][0]}: "
                             "the weights or the decoding are broken")
        for image_id in rows.evaluated_ids.tolist():
            if image_id in self._seen:
                raise InputError(f"image id {image_id} was evaluated twice: ids must be unique in the records")
            self._seen.add(image_id)
        self._parts.append(rows)

    def rows(self) -> DetectionRows:
        """What was collected so far, in the order in which it came."""
        none = DetectionRows(np.zeros(0, np.int64), np.zeros((0, 4), np.float32), np.zeros(0, np.float32),
                             np.zeros(0, np.int64), np.zeros(0, np.int64))
        return DetectionRows(*(np.concatenate(parts) for parts in zip(none, *self._parts, strict=True)))


def boxes_xywh(boxes: np.ndarray) -> np.ndarray:
    """[N, 4] yxyx -> [N, 4] float64 (x, y, width, height)."""
    y_min, x_min, y_max, x_max = np.asarray(boxes, np.float64).T
    return np.stack([x_min, y_min, x_max - x_min, y_max - y_min], axis=-1)


def results_json(rows: DetectionRows) -> list[dict]:
    """COCO's list of results: image_id, category_id, bbox (x, y, width, height; 2 decimals), score (5 decimals)."""
    columns = (rows.image_ids, rows.category_ids, boxes_xywh(rows.boxes).round(2),
               np.asarray(rows.scores, np.float64).round(5))
    return [{"image_id": image_id, "category_id": category_id, "bbox": box, "score": score}
            for image_id, category_id, box, score in zip(*(column.tolist() for column in columns), strict=True)]


def write_results(path: str | Path, results: Iterable[dict]) -> None:
    """Write COCO's list of results, one on a line; the file appears whole or not at all. Folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text("[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n", encoding="utf-8")
    unfinished.replace(path)
