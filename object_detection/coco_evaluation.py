"""The COCO measures (Lin et al. 2014, https://cocodataset.org/#detection-eval).

pycocotools is the measure; faster-coco-eval computes the same numbers ten times as fast, which the tests hold it to. Here it
is fed, kept quiet, and asked why where the answer is 0.
"""

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster
from pycocotools import mask

from object_detection.coco_ground_truth import GroundTruth
from object_detection.coco_results import DetectionRows, boxes_xywh

MEASURE_NAMES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "ARmax1", "ARmax10", "ARmax100", "ARs", "ARm", "ARl")
_MEASURE_MEANINGS = (
    "precision, IoU 0.50 to 0.95", "precision, IoU 0.50", "precision, IoU 0.75",
    "precision, objects < 32x32 px", "precision, objects 32x32 to 96x96 px", "precision, objects > 96x96 px",
    "recall, 1 detection per image", "recall, 10 detections per image", "recall, 100 detections per image",
    "recall, objects < 32x32 px", "recall, objects 32x32 to 96x96 px", "recall, objects > 96x96 px",
)
_FOREIGN_FRACTION = 0.5  # of the boxes that lie off the image before that is named as the cause
_LISTED = 5  # ids named in a message


@dataclass(frozen=True, kw_only=True)
class CocoMeasures:
    """What an evaluation found. Every number lies in 0 .. 1, or is -1 where no object could have been found."""

    numbers: dict[str, float]  # the 12 of MEASURE_NAMES
    class_ap: dict[str, float]  # AP per class, by name
    class_objects: dict[str, int]  # objects looked for, crowds not counted
    images: int  # looked at
    unknown_images: int  # looked at but not in the ground truth
    detections: int
    explanation: str  # the likely cause of an AP of 0 or -1, else empty

    def to_json(self) -> dict:
        """For `json.dump`: the 12 numbers at the top, the rest under its name."""
        rest = {name: value for name, value in vars(self).items() if name != "numbers"}
        return {**self.numbers, **rest}

    def table(self) -> str:
        """The numbers, the classes and the explanation as plain text, many lines."""
        lines = [f"{self.images} images, {self.detections} detections, {sum(self.class_objects.values())} objects"]
        lines += [f"{name:<9}{self.numbers[name]:7.4f}  {meaning}"
                  for name, meaning in zip(MEASURE_NAMES, _MEASURE_MEANINGS, strict=True)]
        width = max(map(len, ["class", *self.class_ap]))
        lines += ["", f"{'class':<{width}}       AP  objects"]
        lines += [f"{name:<{width}}  {ap:7.4f}  {self.class_objects[name]:7d}" for name, ap in self.class_ap.items()]
        if self.unknown_images:
            lines += ["", f"{self.unknown_images} of the {self.images} evaluated images are not in the ground truth: "
                      "each detection in them counts as wrong"]
        if self.explanation:
            lines += ["", f"AP is {self.numbers['AP']:g}: {self.explanation}"]
        return "\n".join(lines)


class CocoEvaluator:
    """Measures detections against one ground truth."""

    def __init__(self, ground_truth: GroundTruth):
        self._ground_truth = ground_truth

    def evaluate(self, rows: DetectionRows) -> CocoMeasures:
        """The COCO numbers of the images looked at (`rows.evaluated_ids`), an image without detections included."""
        annotations = [
            {"id": number, "image_id": image_id, "category_id": category_id, "bbox": box, "area": box[2] * box[3],
             "score": score, "iscrowd": 0}
            for number, (image_id, category_id, box, score) in enumerate(
                zip(rows.image_ids.tolist(), rows.category_ids.tolist(), boxes_xywh(rows.boxes).tolist(),
                    rows.scores.tolist(), strict=True), start=1)]
        measured = self._measure(annotations, image_ids=rows.evaluated_ids.tolist(), iou_type="bbox")
        explanation = explain_poor_result(self._ground_truth, rows) if measured.numbers["AP"] <= 0 else ""
        return CocoMeasures(**{**vars(measured), "explanation": explanation})

    def evaluate_results(self, results: Sequence[dict], *, image_ids: Sequence[int],
                         iou_type: str = "bbox") -> CocoMeasures:
        """The COCO numbers of a list of results as in `detections.json`; without an explanation.

        With `iou_type` "segm" overlap and area are the masks', also where a result has a box beside its mask
        (pycocotools' own loader then takes the box's area).
        """
        annotations = [{**result, "id": number, "iscrowd": 0, "area": self._area(result, iou_type=iou_type)}
                       for number, result in enumerate(results, start=1)]
        return self._measure(annotations, image_ids=image_ids, iou_type=iou_type)

    def _area(self, result: dict, *, iou_type: str) -> float:
        if iou_type == "bbox":
            return result["bbox"][2] * result["bbox"][3]
        height, width = self._ground_truth.image_sizes[result["image_id"]]
        shape = result["segmentation"]
        if isinstance(shape, list):
            shape = mask.merge(mask.frPyObjects(shape, height, width))
        elif isinstance(shape["counts"], list):
            shape = mask.frPyObjects(shape, height, width)
        return float(mask.area(shape))

    def _measure(self, annotations: Sequence[dict], *, image_ids: Sequence[int], iou_type: str) -> CocoMeasures:
        # The engine keeps ids in float64, in which large ones that are neighbours are one. Numbers in the same order, as
        # among equal scores the image with the lower id comes first.
        known = self._ground_truth.image_sizes
        numbers = {image_id: number for number, image_id in enumerate(sorted({*known, *image_ids}), start=1)}
        truth, found = (self._coco_index(listed, numbers) for listed in (self._ground_truth.annotations, annotations))
        evaluation = COCOeval_faster(truth, found, iou_type)
        evaluation.params.imgIds = sorted({numbers[image_id] for image_id in image_ids})
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        labels = _class_labels(self._ground_truth)
        precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [T, R, K]: every size, 100 detections
        objects = self._objects(set(image_ids))
        return CocoMeasures(
            numbers=dict(zip(MEASURE_NAMES, map(float, evaluation.stats[:len(MEASURE_NAMES)]), strict=True)),
            class_ap={label: float(precision[:, :, k].mean()) for k, label in enumerate(labels.values())},
            class_objects={label: objects.get(category_id, 0) for category_id, label in labels.items()},
            images=len(evaluation.params.imgIds),
            unknown_images=len(set(image_ids) - self._ground_truth.image_sizes.keys()),
            detections=len(annotations),
            explanation="",
        )

    def _coco_index(self, annotations: Sequence[dict], numbers: Mapping[int, int]) -> COCO:
        images = [{"id": numbers[image_id]} if size is None
                  else {"id": numbers[image_id], "height": size[0], "width": size[1]}
                  for image_id, size in self._ground_truth.image_sizes.items()]
        categories = [{"id": category_id, "name": name} for category_id, name in self._ground_truth.categories.items()]
        counted = [{**annotation, "image_id": numbers[annotation["image_id"]]} for annotation in annotations
                   if annotation["image_id"] in numbers]
        with contextlib.redirect_stdout(io.StringIO()):
            return COCO({"images": images, "categories": categories, "annotations": counted})

    def _objects(self, image_ids: set[int]) -> dict[int, int]:
        counts: dict[int, int] = {}
        for annotation in self._ground_truth.annotations:
            if annotation["image_id"] in image_ids and not annotation["iscrowd"]:
                counts[annotation["category_id"]] = counts.get(annotation["category_id"], 0) + 1
        return counts


def _class_labels(ground_truth: GroundTruth) -> dict[int, str]:
    """Category id -> name, with the id behind a name that several categories share."""
    names = list(ground_truth.categories.values())
    return {category_id: name if names.count(name) == 1 else f"{name} ({category_id})"
            for category_id, name in ground_truth.categories.items()}


def explain_poor_result(ground_truth: GroundTruth, rows: DetectionRows) -> str:
    """The likely cause of an AP of 0 or -1, in one line."""
    evaluated = set(rows.evaluated_ids.tolist())
    known = evaluated & ground_truth.image_sizes.keys()
    if not evaluated:
        return "no image was evaluated"
    if not known:
        return (f"no image id in common: the evaluated images are {_some(evaluated)}, those of {ground_truth.source} "
                f"{_some(ground_truth.image_sizes)}")
    objects = [annotation for annotation in ground_truth.annotations
               if annotation["image_id"] in known and not annotation["iscrowd"]]
    if not objects:
        return f"{ground_truth.source} has no object (crowds aside) on the {len(known)} evaluated images it knows"
    if not len(rows.scores):
        return f"no detection: on none of {len(evaluated)} images is there a score above the threshold"
    found, wanted = set(rows.category_ids.tolist()), {annotation["category_id"] for annotation in objects}
    if not found & wanted:
        return (f"no class in common: the detections have the category ids {_some(found)}, the objects {_some(wanted)} "
                f"of {ground_truth.source}")
    return _misplaced_boxes(ground_truth, rows) or _poor_overlap(rows, objects)


def _some(ids) -> str:
    ordered = sorted(ids)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > _LISTED else ""
    return "[" + ", ".join(map(str, ordered[:_LISTED])) + more + "]"


def _misplaced_boxes(ground_truth: GroundTruth, rows: DetectionRows) -> str:
    """Boxes off their images, in fractions, or without area; empty where most are in order."""
    unknown = (np.inf, np.inf)
    sizes = np.array([ground_truth.image_sizes.get(image_id) or unknown for image_id in rows.image_ids.tolist()])
    low, high = rows.boxes[:, :2], rows.boxes[:, 2:]  # [N, 2] y and x
    count = len(rows.boxes)
    empty = int((high <= low).any(axis=-1).sum())
    if empty > _FOREIGN_FRACTION * count:
        return f"{empty} of {count} boxes have no area (y_min, x_min, y_max, x_max is the order wanted)"
    if high.max() <= 1.5 and np.isfinite(sizes).all() and sizes.min() > 2:
        return f"all {count} boxes lie within {high.max():.3g} pixels of the corner: fractions instead of pixels?"
    centres = (low + high) / 2
    outside = int(((centres < 0) | (centres > sizes)).any(axis=-1).sum())
    if outside > _FOREIGN_FRACTION * count:
        first = int(np.flatnonzero(((centres < 0) | (centres > sizes)).any(axis=-1))[0])
        return (f"boxes outside the images: {outside} of {count} have their centre there, such as "
                f"{rows.boxes[first].round(1).tolist()} (yxyx) on image {rows.image_ids[first]} of height and width "
                f"{sizes[first].astype(int).tolist()}")
    return ""


def _poor_overlap(rows: DetectionRows, objects: Sequence[dict]) -> str:
    """How near the boxes come to any object, of their own class and of others."""
    boxes, same, any_class = boxes_xywh(rows.boxes), 0.0, 0.0
    for image_id in set(rows.image_ids.tolist()):
        here = np.flatnonzero(rows.image_ids == image_id)
        there = [annotation for annotation in objects if annotation["image_id"] == image_id]
        if there:
            iou = np.asarray(mask.iou(boxes[here], np.array([annotation["bbox"] for annotation in there], np.float64),
                                      [0] * len(there)))  # [n, m]
            agree = rows.category_ids[here, None] == np.array([annotation["category_id"] for annotation in there])
            same, any_class = max(same, (iou * agree).max()), max(any_class, iou.max())
    best = f"the best overlap with an object of the same class is IoU {same:.2f}, of any class {any_class:.2f}"
    guess = "the classes seem mixed up" if any_class >= 0.5 > same else "the detector has hardly learnt"
    return f"no box fits its object: {best}; the highest score is {rows.scores.max():.3g}: {guess}"
