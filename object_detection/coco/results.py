"""Detections on their way to a measure or a file: one row each, with the ids the data set itself uses."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from object_detection.coco.run_length_masks import RunLengths, pasted_run_lengths
from program_support.atomic_files import write_text
from program_support.errors import InputError

TESTDEV_FILE_NAME = "detections_test-dev2017_test_results.json"  # the name the COCO server asks for


class DetectionRows(NamedTuple):
    """Detections of I images, N in all, in the order found (best first within an image)."""

    image_ids: np.ndarray  # [N] int64
    boxes: np.ndarray  # [N, 4] float32, yxyx original pixels
    scores: np.ndarray  # [N] float32
    category_ids: np.ndarray  # [N] int64, the data set's own
    evaluated_ids: np.ndarray  # [I] int64, images looked at, also those without a detection
    masks: np.ndarray | None = None  # [N] objects, run lengths in the original image; None: boxes alone

    @classmethod
    def of_image(cls, boxes, scores, category_ids, *, masks: Sequence[RunLengths] | None = None,
                 image_id: int = 0) -> "DetectionRows":
        """The N detections of one image: boxes [N, 4] yxyx, scores [N], category_ids [N], masks in the image's pixels."""
        return cls(np.full(len(scores), image_id, np.int64), boxes, scores, category_ids, np.array([image_id], np.int64),
                   None if masks is None else _objects(masks))

    def with_image_id(self, image_id: int) -> "DetectionRows":
        """The same detections of one image under another id."""
        return self._replace(image_ids=np.full_like(self.image_ids, image_id), evaluated_ids=np.array([image_id], np.int64))

    def drawn(self, min_scores: np.ndarray, most: int | None) -> "DetectionRows":
        """Return what people are shown: the first `most` of one image that score at least `min_scores` [N]."""
        return self.chosen(np.flatnonzero(self.scores >= min_scores)[:most])

    def chosen(self, which: np.ndarray) -> "DetectionRows":
        """Some of the detections: a mask or numbers of rows. The images looked at stay."""
        masks = None if self.masks is None else self.masks[which]
        return DetectionRows(*(values[which] for values in self[:4]), self.evaluated_ids, masks)


class CocoResults:
    """Collects the detections of an evaluation, batch by batch, each image once."""

    def __init__(self):
        self._parts: list[DetectionRows] = []
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """How many images were looked at, those without detections among them."""
        return len(self._seen)

    def add(self, image_ids, boxes, *, scores, category_ids, valid, masks=None, original_sizes=None,
            masks_in_whole_pixels: bool = False) -> None:
        """Add a batch, left out where not `valid`.

        image_ids [B] integer; boxes [B, D, 4] yxyx in pixels of the original image; scores, category_ids (the data
        set's own), valid [B, D]; where the detector has masks, masks [B, D, S, S], probabilities within the boxes, which are
        pasted into images of original_sizes [B, 2] (height, width), `masks_in_whole_pixels` as `pasted_masks` says. Raises
        InputError where an image comes a second time, ValueError for ids that are not integers or for boxes or scores that
        are not finite.
        """
        image_ids, valid = np.asarray(image_ids), np.asarray(valid, bool)
        if not np.issubdtype(image_ids.dtype, np.integer):
            raise ValueError(f"image ids are {image_ids.dtype}; expected integers (a float32 id is rounded)")
        if masks is not None:
            images = zip(masks, boxes, valid, np.asarray(original_sizes).tolist(), strict=True)
            masks = _objects([encoded for mask, box, here, size in images for encoded in
                              pasted_run_lengths(np.asarray(mask)[here], np.asarray(box)[here], size=(*size,),
                                                 in_whole_pixels=masks_in_whole_pixels)])
        rows = DetectionRows(
            image_ids=np.repeat(image_ids.astype(np.int64), valid.sum(axis=1)),
            boxes=np.asarray(boxes, np.float32)[valid],
            scores=np.asarray(scores, np.float32)[valid],
            category_ids=np.asarray(category_ids)[valid].astype(np.int64),
            evaluated_ids=image_ids.astype(np.int64),
            masks=masks,
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
        parts = [none, *self._parts]
        masks = [part.masks for part in self._parts]
        has_masks = bool(masks) and all(part is not None for part in masks)
        return DetectionRows(*(np.concatenate(columns) for columns in zip(*(part[:5] for part in parts), strict=True)),
                             masks=np.concatenate(masks) if has_masks else None)


def _objects(values: Sequence) -> np.ndarray:
    """[N] of Python objects, which NumPy would else try to look into."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def boxes_xywh(boxes: np.ndarray) -> np.ndarray:
    """[N, 4] yxyx -> [N, 4] float64 (x, y, width, height)."""
    y_min, x_min, y_max, x_max = np.asarray(boxes, np.float64).T
    return np.stack([x_min, y_min, x_max - x_min, y_max - y_min], axis=-1)


def results_json(rows: DetectionRows) -> list[dict]:
    """COCO's list of results: image_id, category_id, bbox (x, y, width, height; 2 decimals), score (5 decimals).

    With a `segmentation` (run lengths) where the rows have masks.
    """
    columns = (rows.image_ids, rows.category_ids, boxes_xywh(rows.boxes).round(2),
               np.asarray(rows.scores, np.float64).round(5))
    results = [{"image_id": image_id, "category_id": category_id, "bbox": box, "score": score}
               for image_id, category_id, box, score in zip(*(column.tolist() for column in columns), strict=True)]
    if rows.masks is not None:
        for result, mask in zip(results, rows.masks, strict=True):
            result["segmentation"] = mask
    return results


def write_results(path: str | Path, results: Iterable[dict]) -> None:
    """Write COCO's list of results, one on a line; the file appears whole or not at all. Folders are made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
