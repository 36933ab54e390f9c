"""The likely cause of a COCO metric of 0 or -1, in one line."""

from collections.abc import Iterable, Sequence

import numpy as np

from object_detection.coco.ground_truth import Annotation, GroundTruth
from object_detection.coco.matching import box_overlap
from object_detection.coco.results import DetectionRows, boxes_xywh

_MAX_SHOWN_IDS = 5  # ids listed in a message


def explain_poor_result(ground_truth: GroundTruth, rows: DetectionRows) -> str:
    """Return the likely cause of an AP of 0 or -1, in one line."""
    evaluated = set(rows.evaluated_ids.tolist())
    known = evaluated & ground_truth.image_sizes.keys()
    if not evaluated:
        return "no image was evaluated"
    if not known:
        return (
            f"no image id in common: the evaluated images are {_ids(evaluated)}, those of {ground_truth.source} "
            f"{_ids(ground_truth.image_sizes)}"
        )
    here = [annotation for annotation in ground_truth.annotations if annotation["image_id"] in known]
    objects = [annotation for annotation in here if not annotation["iscrowd"] and not annotation.get("difficult")]
    if not objects:
        aside = "crowds and difficult ones" if any(annotation.get("difficult") for annotation in here) else "crowds"
        return f"{ground_truth.source} has no object ({aside} aside) on the {len(known)} evaluated images it knows"
    if not len(rows.scores):
        return f"no detection: on none of {len(evaluated)} images does a score exceed the threshold"
    detected, expected = set(rows.category_ids.tolist()), {annotation["category_id"] for annotation in objects}
    if not detected & expected:
        return (
            f"no class in common: the detections have the category ids {_ids(detected)}, the objects {_ids(expected)} "
            f"of {ground_truth.source}"
        )
    empty = int((rows.boxes[:, 2:] <= rows.boxes[:, :2]).any(axis=-1).sum())
    if empty > len(rows.boxes) / 2:  # clipped to the image
        return f"{empty} of {len(rows.boxes)} boxes have no area inside their image: the detector has hardly learned"
    return _poor_overlap(rows, objects)


def _ids(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > _MAX_SHOWN_IDS else ""
    return "[" + ", ".join(map(str, ordered[:_MAX_SHOWN_IDS])) + more + "]"


def _poor_overlap(rows: DetectionRows, objects: Sequence[Annotation]) -> str:
    """Describe the largest IoU with an object of the same class and of any class, and the likely cause."""
    boxes, same, any_class = boxes_xywh(rows.boxes), 0.0, 0.0
    for image_id in set(rows.image_ids.tolist()):
        here = np.flatnonzero(rows.image_ids == image_id)
        there = [annotation for annotation in objects if annotation["image_id"] == image_id]
        if there:
            overlap = box_overlap(
                boxes[here],
                np.array([annotation["bbox"] for annotation in there], np.float64),
                np.zeros(len(there), bool),
            )
            iou = overlap(np.arange(len(here))[:, None], np.arange(len(there)))  # [n, m]
            agree = rows.category_ids[here, None] == np.array([annotation["category_id"] for annotation in there])
            same, any_class = max(same, (iou * agree).max()), max(any_class, iou.max())
    best = f"the best overlap with an object of the same class is IoU {same:.2f}, of any class {any_class:.2f}"
    guess = "the classes seem mixed up" if any_class >= 0.5 > same else "the detector has hardly learned"
    return f"no box fits its object: {best}; the highest score is {rows.scores.max():.3g}: {guess}"
