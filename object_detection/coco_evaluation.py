"""The COCO measures (Lin et al. 2014, https://cocodataset.org/#detection-eval).

pycocotools is the measure; `coco_matching` computes the same numbers many times faster, which the tests hold it to. Here it
is fed, and asked why where the answer is 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from pycocotools import mask

from object_detection.coco_ground_truth import GroundTruth
from object_detection.coco_matching import (
    IOU_THRESHOLDS,
    Curves,
    Founds,
    Overlap,
    Truths,
    box_overlap,
    curves,
)
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
        annotations = ground_truth.annotations
        self._image_ids = np.array([annotation["image_id"] for annotation in annotations], np.int64)
        self._category_ids = np.array([annotation["category_id"] for annotation in annotations], np.int64)
        self._areas = np.array([annotation["area"] for annotation in annotations], np.float64)
        self._crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
        self._boxes = np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4)

    def evaluate(self, rows: DetectionRows) -> CocoMeasures:
        """The COCO numbers of the images looked at (`rows.evaluated_ids`), an image without detections included."""
        boxes = boxes_xywh(rows.boxes)
        measured = self._measure(
            Founds(rows.image_ids, rows.category_ids, boxes[:, 2] * boxes[:, 3], rows.scores),
            image_ids=rows.evaluated_ids, overlap_of=self._overlap_of_boxes(boxes))
        explanation = explain_poor_result(self._ground_truth, rows) if measured.numbers["AP"] <= 0 else ""
        return CocoMeasures(**{**vars(measured), "explanation": explanation})

    def evaluate_results(self, results: Sequence[dict], *, image_ids: Sequence[int],
                         iou_type: str = "bbox") -> CocoMeasures:
        """The COCO numbers of a list of results as in `detections.json`; without an explanation.

        With `iou_type` "segm" overlap and area are the masks', also where a result has a box beside its mask
        (pycocotools' own loader then takes the box's area).
        """
        def values(key: str, kind: type) -> np.ndarray:
            return np.array([result[key] for result in results], kind)

        if iou_type == "bbox":
            boxes = values("bbox", np.float64).reshape(-1, 4)
            areas, overlap_of = boxes[:, 2] * boxes[:, 3], self._overlap_of_boxes(boxes)
        else:
            masks = [self._encoded_mask(result) for result in results]
            areas = np.array([mask.area(encoded) for encoded in masks], np.float64)

            def overlap_of(found: np.ndarray, truth: np.ndarray) -> Overlap:
                return _mask_overlap([masks[i] for i in found], [self._encoded_mask(self._ground_truth.annotations[i])
                                                                 for i in truth], self._crowd[truth])

        founds = Founds(values("image_id", np.int64), values("category_id", np.int64), areas, values("score", np.float64))
        return self._measure(founds, image_ids=np.asarray(image_ids, np.int64), overlap_of=overlap_of)

    def _overlap_of_boxes(self, boxes: np.ndarray) -> Callable[[np.ndarray, np.ndarray], Overlap]:
        """What `_measure` wants for found boxes, [D, 4] xywh."""
        return lambda found, truth: box_overlap(boxes[found], self._boxes[truth], self._crowd[truth])

    def _encoded_mask(self, item: dict) -> dict:
        """The run lengths of a result or an annotation; polygons and plain lists are encoded."""
        height, width = self._ground_truth.image_sizes[item["image_id"]]
        shape = item["segmentation"]
        if isinstance(shape, list):
            return mask.merge(mask.frPyObjects(shape, height, width))
        return mask.frPyObjects(shape, height, width) if isinstance(shape["counts"], list) else shape

    def _measure(self, founds: Founds, *, image_ids: np.ndarray,
                 overlap_of: Callable[[np.ndarray, np.ndarray], Overlap]) -> CocoMeasures:
        """`founds` with image and category ids for numbers; `overlap_of` the rows that are kept, by their numbers."""
        images = np.unique(image_ids)
        category_ids = np.array(list(self._ground_truth.categories), np.int64)
        found = np.flatnonzero(np.isin(founds.images, images) & np.isin(founds.classes, category_ids))
        truth = np.flatnonzero(np.isin(self._image_ids, images))

        def numbered(image: np.ndarray, category: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return np.searchsorted(images, image), np.searchsorted(category_ids, category)

        result = curves(
            Founds(*numbered(founds.images[found], founds.classes[found]), founds.areas[found], founds.scores[found]),
            Truths(*numbered(self._image_ids[truth], self._category_ids[truth]), self._areas[truth], self._crowd[truth]),
            num_classes=len(category_ids), overlap=overlap_of(found, truth))
        labels = _class_labels(self._ground_truth)
        objects = dict(zip(*np.unique(self._category_ids[truth][~self._crowd[truth]], return_counts=True), strict=True))
        return CocoMeasures(
            numbers=_numbers(result),
            class_ap={label: float(result.precision[:, :, k, 0].mean()) for k, label in enumerate(labels.values())},
            class_objects={label: int(objects.get(category_id, 0)) for category_id, label in labels.items()},
            images=len(images),
            unknown_images=len(set(images.tolist()) - self._ground_truth.image_sizes.keys()),
            detections=len(founds.scores),
            explanation="",
        )


def _numbers(result: Curves) -> dict[str, float]:
    """The 12 of MEASURE_NAMES: means over the classes that have objects."""
    def mean(values: np.ndarray) -> float:
        present = values[values > -1]
        return float(present.mean()) if present.size else -1.0

    precision, recall = result.precision, result.recall
    at = [int(np.argmin(abs(IOU_THRESHOLDS - threshold))) for threshold in (0.5, 0.75)]
    values = [precision[..., 0], *(precision[t, :, :, 0] for t in at), *(precision[..., a] for a in (1, 2, 3)),
              *(recall[:, :, 0, m] for m in (0, 1, 2)), *(recall[:, :, a, 2] for a in (1, 2, 3))]
    return dict(zip(MEASURE_NAMES, map(mean, values), strict=True))


def _mask_overlap(found: Sequence[dict], truth: Sequence[dict], crowd: np.ndarray) -> Overlap:
    """What `box_overlap` gives for boxes, for masks as run lengths; `crowd` [objects] bool."""
    def overlap(founds: np.ndarray, truths: np.ndarray) -> np.ndarray:
        return np.stack([
            mask.iou([found[i] for i in one], [truth[i] for i in other], crowd[other].astype(np.uint8))
            for one, other in zip(founds, truths, strict=True)])

    return overlap


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
