"""Ground truth and detections written down in a test, and what pycocotools says of them."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from object_detection.coco.evaluation import ground_truth_from_dataset
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import encoded

CATEGORIES = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
BOX = (10, 20, 100, 50)
OTHER = (200, 150, 60, 60)


def read_ground_truth(path):
    return ground_truth_from_dataset(json.loads(Path(path).read_text()), source=str(path))


def ground_truth(objects, *, images=(0, 1), categories=CATEGORIES):
    """`objects`: (image id, category id, (x, y, width, height)[, iscrowd])."""
    annotations = [
        {
            "id": number,
            "image_id": image_id,
            "category_id": category_id,
            "bbox": list(box_xywh),
            "area": box_xywh[2] * box_xywh[3],
            "iscrowd": crowd[0] if crowd else 0,
        }
        for number, (image_id, category_id, box_xywh, *crowd) in enumerate(objects)
    ]
    return ground_truth_from_dataset(
        {
            "images": [{"id": i, "height": 400, "width": 500} for i in images],
            "annotations": annotations,
            "categories": list(categories),
        },
        source="truth.json",
    )


def detections(found, *, images=(0, 1), dtype=np.float32):
    """`found`: (image id, category id, (x, y, width, height), score)."""
    boxes = [(y, x, y + height, x + width) for _, _, (x, y, width, height), _ in found]
    return DetectionRows(
        np.array([row[0] for row in found], np.int64),
        np.array(boxes, dtype).reshape(-1, 4),
        np.array([row[3] for row in found], dtype),
        np.array([row[1] for row in found], np.int64),
        np.array([*images], np.int64),
    )


def rows_of(results, *, truth, image_ids=None, dtype=np.float64):
    """Rows from a COCO list of results, with masks if the results have them."""
    found = [(r["image_id"], r["category_id"], r.get("bbox", (0, 0, 1, 1)), r["score"]) for r in results]
    rows = detections(found, images=truth.image_sizes if image_ids is None else image_ids, dtype=dtype)
    if not results or not all(result.get("segmentation") for result in results):
        return rows
    masks = np.empty(len(results), object)
    for number, result in enumerate(results):
        mask, size = result["segmentation"], truth.image_sizes[result["image_id"]]
        masks[number] = encoded(mask, size or mask["size"])
    return rows._replace(masks=masks)


def by_pycocotools(truth, results, *, image_ids, kind="bbox"):
    """Its `COCOeval` of a list of results by its own documentation's lines, accumulated."""
    index = COCO()
    index.dataset = {
        "images": [{"id": image_id, "height": 400, "width": 500} for image_id in truth.image_sizes],
        "annotations": [dict(annotation) for annotation in truth.annotations],
        "categories": [{"id": category_id} for category_id in truth.categories],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        index.createIndex()
        oracle = COCOeval(index, index.loadRes([dict(result) for result in results]), kind)
        oracle.params.imgIds = sorted(image_ids)
        oracle.evaluate()
        oracle.accumulate()
    return oracle
