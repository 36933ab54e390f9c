"""Detections as rows, one each, with the data set's own ids, for evaluation and for result files."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from object_detection.coco.run_length_masks import RunLengths, pasted_run_lengths
from program_support.atomic_files import write_text
from program_support.errors import InputError

TESTDEV_FILE_NAME = "detections_test-dev2017_test_results.json"  # the name that the COCO server requires


class DetectionRows(NamedTuple):
    """Detections of I images, N in total, in the order of the images (by falling score within an image)."""

    image_ids: np.ndarray  # [N] int64
    boxes: np.ndarray  # [N, 4] float32, yxyx original pixels
    scores: np.ndarray  # [N] float32
    category_ids: np.ndarray  # [N] int64, the data set's own
    evaluated_ids: np.ndarray  # [I] int64, evaluated images, also those without a detection
    masks: np.ndarray | None = None  # [N] objects, run lengths in the original image; None: boxes only
    track_ids: np.ndarray | None = None  # [N] int64, from 1; None: not tracked

    @classmethod
    def of_image(
        cls,
        boxes: np.ndarray,
        scores: np.ndarray,
        category_ids: np.ndarray,
        *,
        masks: Sequence[RunLengths] | None = None,
        image_id: int = 0,
    ) -> "DetectionRows":
        """Return the N detections of one image: boxes [N, 4] yxyx, scores, category_ids and masks [N] each."""
        return cls(
            np.full(len(scores), image_id, np.int64),
            boxes,
            scores,
            category_ids,
            np.array([image_id], np.int64),
            None if masks is None else _objects(masks),
        )

    def with_image_id(self, image_id: int) -> "DetectionRows":
        """Return the same detections of one image under another id."""
        return self._replace(
            image_ids=np.full_like(self.image_ids, image_id), evaluated_ids=np.array([image_id], np.int64)
        )

    def drawn(self, min_scores: np.ndarray, most: int | None) -> "DetectionRows":
        """Return the detections to draw: the first `most` of one image that score at least `min_scores` [N]."""
        return self.chosen(np.flatnonzero(self.scores >= min_scores)[:most])

    def chosen(self, which: np.ndarray) -> "DetectionRows":
        """Return the detections that a mask or row numbers select; the evaluated images stay the same."""
        columns = {name: column for name, column in self._asdict().items() if column is not None}
        del columns["evaluated_ids"]
        return self._replace(**{name: column[which] for name, column in columns.items()})


class CocoResults:
    """Detections of an evaluation, collected batch by batch, each image once."""

    def __init__(self) -> None:
        self._parts: list[DetectionRows] = []
        self._seen: set[int] = set()

    def __len__(self) -> int:
        """Return the number of evaluated images, including those without detections."""
        return len(self._seen)

    def add(
        self,
        image_ids: ArrayLike,
        boxes: ArrayLike,
        *,
        scores: ArrayLike,
        category_ids: ArrayLike,
        valid: ArrayLike,
        masks: Iterable[np.ndarray] | None = None,
        original_sizes: ArrayLike | None = None,
        masks_in_whole_pixels: bool = False,
    ) -> None:
        """Add a batch of detections, except those not `valid`.

        Args:
            image_ids: [B] integer.
            boxes: [B, D, 4] yxyx in pixels of the original image.
            scores: [B, D].
            category_ids: [B, D], the data set's own.
            valid: [B, D] bool.
            masks: [B, D, S, S], probabilities within the boxes, pasted into images of original_sizes; None: boxes only.
            original_sizes: [B, 2], height and width of the original images.
            masks_in_whole_pixels: see `pasted_masks`.

        Raises:
            InputError: an image was added before.
            ValueError: ids are not integers, or boxes or scores are not finite.
        """
        image_ids, valid = np.asarray(image_ids), np.asarray(valid, bool)
        if not np.issubdtype(image_ids.dtype, np.integer):
            raise ValueError(f"image ids are {image_ids.dtype}; expected integers (a float32 id is rounded)")
        if masks is not None:
            images = zip(masks, np.asarray(boxes), valid, np.asarray(original_sizes).tolist(), strict=True)
            masks = _objects(
                [
                    encoded
                    for mask, box, here, size in images
                    for encoded in pasted_run_lengths(
                        np.asarray(mask)[here], box[here], size=(*size,), in_whole_pixels=masks_in_whole_pixels
                    )
                ]
            )
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
        """Add the results of another process, or a batch of rows; raises as `add`."""
        finite = np.isfinite(rows.boxes).all(axis=-1) & np.isfinite(rows.scores)
        if not finite.all():
            raise ValueError(
                f"NaN or infinite box or score in image {rows.image_ids[~finite][0]}: "
                "the weights or the box decoding are invalid"
            )
        for image_id in rows.evaluated_ids.tolist():
            if image_id in self._seen:
                raise InputError(f"image id {image_id} was evaluated twice; expected unique ids in the records")
            self._seen.add(image_id)
        self._parts.append(rows)

    def rows(self) -> DetectionRows:
        """Return all rows collected so far, in the order of their addition."""
        none = DetectionRows(
            np.zeros(0, np.int64),
            np.zeros((0, 4), np.float32),
            np.zeros(0, np.float32),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
        )
        parts = [none, *self._parts]
        columns = (np.concatenate(column) for column in zip(*(part[:5] for part in parts), strict=True))
        masks = [part.masks for part in self._parts if part.masks is not None]
        has_masks = 0 < len(masks) == len(self._parts)
        return DetectionRows(*columns)._replace(masks=np.concatenate(masks) if has_masks else None)


def _objects(values: Sequence[Any]) -> np.ndarray:
    """Return an array [N] of Python objects, which NumPy must not convert."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def boxes_xywh(boxes: np.ndarray) -> np.ndarray:
    """Return boxes [N, 4] yxyx as [N, 4] float64 (x, y, width, height)."""
    y_min, x_min, y_max, x_max = np.asarray(boxes, np.float64).T
    return np.stack([x_min, y_min, x_max - x_min, y_max - y_min], axis=-1)


def results_json(rows: DetectionRows) -> list[dict[str, Any]]:
    """Return COCO's list of results: image_id, category_id, bbox (x, y, width, height; 2 decimals), score (5 decimals).

    Each has a `segmentation` (run lengths) if the rows have masks, and a `track_id` if they are tracked.
    """
    columns = {
        "image_id": rows.image_ids,
        "category_id": rows.category_ids,
        "bbox": boxes_xywh(rows.boxes).round(2),
        "score": np.asarray(rows.scores, np.float64).round(5),
        "segmentation": rows.masks,
        "track_id": rows.track_ids,
    }
    lists = {name: column.tolist() for name, column in columns.items() if column is not None}
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def write_results(path: str | Path, results: Iterable[dict[str, Any]]) -> None:
    """Write COCO's list of results, one per line. The file appears complete or not at all. Folders are created."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "[\n" + ",\n".join(map(json.dumps, results)) + "\n]\n")
