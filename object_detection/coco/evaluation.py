"""Ground truth, checked once, and the COCO metrics of detections.

The metrics are those of Lin et al. 2014, https://cocodataset.org/#detection-eval. pycocotools is the reference;
`object_detection.coco.matching` computes the same numbers many times faster, which the tests verify. This module passes
it the detections and explains a result of 0 or -1.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from object_detection.coco.bootstrap import default_resamples, intervals
from object_detection.coco.matching import (
    IOU_THRESHOLDS,
    Comparison,
    Curves,
    Instances,
    ObjectFlags,
    Overlap,
    box_overlap,
    near_pairs,
)
from object_detection.coco.measures import MEASURE_NAMES, CocoMeasures
from object_detection.coco.results import DetectionRows, boxes_xywh
from object_detection.coco.run_length_masks import RunLengths, encoded, mask_areas, mask_overlap
from object_detection.coco.score_calibration import thresholds_to_store
from program_support.errors import InputError

Annotation = dict[str, Any]  # an object with COCO's keys


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Images, categories and annotations to evaluate against."""

    source: str  # where it came from, for messages
    image_sizes: dict[int, tuple[int, int] | None]  # image id -> (height, width) where known
    categories: dict[int, str]  # category id -> name, ascending
    annotations: tuple[Annotation, ...]  # COCO's, with the ids 1, 2, ... (see `_checked_annotation`)
    file_names: dict[int, str] = field(default_factory=dict)  # image id -> file name where known


def ground_truth_from_dataset(dataset: Mapping[str, Any], *, source: str) -> GroundTruth:
    """Check and index a COCO dictionary of `images`, `annotations` and `categories`; it is not changed.

    Raises:
        InputError: with `source` and the id, if it is invalid.
    """
    images, annotations, categories = (
        _list_of(dataset, key, source=source) for key in ("images", "annotations", "categories")
    )
    image_sizes = {}
    for image in images:
        image_id = _integer(image, "id", where=f"{source}: an image")
        if image_id in image_sizes:
            raise InputError(f"{source}: image id {image_id} occurs twice")
        known = "height" in image and "width" in image
        image_sizes[image_id] = (image["height"], image["width"]) if known else None
    names = {}
    for category in categories:
        category_id = _integer(category, "id", where=f"{source}: a category")
        names[category_id] = str(category.get("name", category_id))
    checked = tuple(
        _checked_annotation(annotation, number=number, categories=names, source=source)
        for number, annotation in enumerate(annotations, start=1)
    )
    return GroundTruth(
        source=source,
        image_sizes=image_sizes,
        categories=dict(sorted(names.items())),
        annotations=checked,
        file_names={image["id"]: image["file_name"] for image in images if isinstance(image.get("file_name"), str)},
    )


def _list_of(dataset: Mapping[str, Any], key: str, *, source: str) -> list[Mapping[str, Any]]:
    """Return dataset[key]; raise InputError if it is not a list of dictionaries."""
    entries = dataset.get(key) if isinstance(dataset, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(item, Mapping) for item in entries):
        raise InputError(
            f"{source}: no list {key!r} of dictionaries; expected a COCO file with images, annotations and "
            "categories (instances_*.json)"
        )
    return entries


def _integer(item: Mapping[str, Any], key: str, *, where: str) -> int:
    """Return item[key]; raise InputError, beginning with `where`, if it is not an integer."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where} has {key} {value!r}; expected an integer")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _checked_annotation(
    annotation: Mapping[str, Any], *, number: int, categories: Mapping[int, str], source: str
) -> Annotation:
    """Return a copy with the keys that files tend to leave out, under a new id.

    pycocotools treats a match with annotation 0 as no match, and two annotations with the same id as one. It also
    writes into its input, hence the copy.
    """
    where = f"{source}: annotation {annotation.get('id')!r} of image {annotation.get('image_id')!r}"
    _integer(annotation, "image_id", where=where)
    category_id = _integer(annotation, "category_id", where=where)
    if category_id not in categories:
        raise InputError(f"{where} has category_id {category_id}; expected one of {sorted(categories)}")
    box_xywh = annotation.get("bbox")
    if not isinstance(box_xywh, list | tuple) or len(box_xywh) != 4 or not all(map(_is_number, box_xywh)):
        raise InputError(f"{where} has bbox {box_xywh!r}; expected four finite numbers x, y, width, height")
    area = annotation.get("area", box_xywh[2] * box_xywh[3])
    if not _is_number(area):
        raise InputError(f"{where} has area {area!r}; expected a finite number")
    return {**annotation, "id": number, "area": area, "iscrowd": int(annotation.get("iscrowd") or 0)}


_MAX_SHOWN_IDS = 5  # ids listed in a message
_LACKS_MASKS = "an annotation has no segmentation, or its image no height and width"


class CocoEvaluator:
    """Evaluator of detections against one ground truth.

    As in VOC, objects marked `difficult` are ignored: neither finding nor missing one is an error. pycocotools,
    which does not know the mark, counts them as ordinary objects.
    """

    def __init__(self, ground_truth: GroundTruth, *, segmentations: Callable[[], Sequence[Any]] | None = None):
        """Create an evaluator.

        segmentations: returns the segmentations of the annotations, in their order, None where there is none. It is
        called when masks are first evaluated, for ground truth without segmentations or with unchecked ones.
        """
        self.ground_truth, self._fetch_segmentations = ground_truth, segmentations
        annotations = ground_truth.annotations
        self._image_ids = np.array([annotation["image_id"] for annotation in annotations], np.int64)
        self._category_ids = np.array([annotation["category_id"] for annotation in annotations], np.int64)
        self._areas = np.array([annotation["area"] for annotation in annotations], np.float64)
        crowd = np.array([annotation["iscrowd"] for annotation in annotations], bool)
        difficult = np.array([bool(annotation.get("difficult")) for annotation in annotations], bool)
        self._flags = ObjectFlags(crowd=crowd, ignored=crowd | difficult)
        self._boxes = np.array([annotation["bbox"] for annotation in annotations], np.float64).reshape(-1, 4)

    def evaluate(
        self,
        rows: DetectionRows,
        *,
        resamples: int | None = 0,
        comparison: Comparison | None = None,
    ) -> CocoMeasures:
        """Return the COCO metrics of the evaluated images (`rows.evaluated_ids`), including images without detections.

        The metrics of masks are included if the detections and all annotations have masks. Intervals come from
        `resamples` of the images, 0: no intervals, None: `default_resamples`. `comparison` is that of `compare`, for
        callers that need it too, because it matches only once.
        """
        comparison = comparison or self.compare(rows)
        resamples = default_resamples(comparison) if resamples is None else resamples
        measured = self._measures(comparison, num_detections=len(rows.scores), resamples=resamples)
        explanation = explain_poor_result(self.ground_truth, rows) if measured.numbers["AP"] <= 0 else ""
        measured = replace(measured, explanation=explanation, score_thresholds=thresholds_to_store(comparison))
        if rows.masks is None:
            return measured
        if self._masks is None:
            return replace(measured, mask_explanation=f"{self.ground_truth.source}: {_LACKS_MASKS}")
        of_masks = self._measures(
            self._compare(rows, mask_areas(rows.masks), mask_overlap(rows.masks, self._masks, self._flags.crowd)),
            num_detections=len(rows.scores),
            resamples=resamples,
        )
        return replace(
            measured,
            mask_numbers=of_masks.numbers,
            mask_class_ap=of_masks.class_ap,
            intervals=measured.intervals | {f"mask_{name}": ends for name, ends in of_masks.intervals.items()},
        )

    def compare(self, rows: DetectionRows) -> Comparison:
        """Return the boxes matched with the objects of the evaluated images."""
        boxes = boxes_xywh(rows.boxes)
        return self._compare(rows, boxes[:, 2] * boxes[:, 3], box_overlap(boxes, self._boxes, self._flags.crowd))

    @cached_property
    def _masks(self) -> list[RunLengths] | None:
        """Return the run lengths of all annotations; None if an annotation has none, or its image has no size."""
        annotations, sizes = self.ground_truth.annotations, self.ground_truth.image_sizes
        if self._fetch_segmentations:
            segmentations = self._fetch_segmentations()
        else:
            segmentations = [annotation.get("segmentation") for annotation in annotations]
        placed = [
            (segmentation, size)
            for segmentation, annotation in zip(segmentations, annotations, strict=True)
            if segmentation and (size := sizes.get(annotation["image_id"]))
        ]
        return [encoded(*entry) for entry in placed] if len(placed) == len(annotations) else None

    def _compare(self, rows: DetectionRows, areas: np.ndarray, overlap: Overlap) -> Comparison:
        """Return the comparison of D detections that have `areas` [D] and `overlap` with the annotations."""
        images, known_ids = np.unique(rows.evaluated_ids), np.array(list(self.ground_truth.categories), np.int64)
        detected = np.flatnonzero(np.isin(rows.image_ids, images) & np.isin(rows.category_ids, known_ids))
        objects = np.flatnonzero(np.isin(self._image_ids, images))

        def numbered(image: np.ndarray, category: np.ndarray, area: np.ndarray) -> Instances:
            return Instances(np.searchsorted(images, image), np.searchsorted(known_ids, category), area)

        return Comparison(
            image_ids=images,
            names=_class_names(self.ground_truth),
            detected=detected,
            scores=rows.scores[detected],
            detections=numbered(rows.image_ids[detected], rows.category_ids[detected], areas[detected]),
            objects=numbered(self._image_ids[objects], self._category_ids[objects], self._areas[objects]),
            object_boxes=self._boxes[objects],
            flags=ObjectFlags(*(flag[objects] for flag in self._flags)),
            overlap=lambda here, there: overlap(detected[here], objects[there]),
        )

    def _measures(self, comparison: Comparison, *, num_detections: int, resamples: int) -> CocoMeasures:
        """Return the metrics without an explanation; `num_detections` includes those of unknown classes."""
        precision = comparison.curves.precision
        return CocoMeasures(
            numbers=_numbers(comparison.curves),
            class_ap={name: float(precision[:, :, k, 0].mean()) for k, name in enumerate(comparison.names)},
            class_objects=dict(zip(comparison.names, comparison.class_counts.tolist(), strict=True)),
            images=len(comparison.image_ids),
            unknown_images=len(set(comparison.image_ids.tolist()) - self.ground_truth.image_sizes.keys()),
            detections=num_detections,
            explanation="",
            intervals=intervals(comparison, resamples),
        )


def _numbers(result: Curves) -> dict[str, float]:
    """Return the 12 numbers of MEASURE_NAMES: means over the classes that have objects."""

    def mean(values: np.ndarray) -> float:
        present = values[values > -1]
        return float(present.mean()) if present.size else -1.0

    precision, recall = result.precision, result.recall
    at = [int(np.argmin(abs(IOU_THRESHOLDS - threshold))) for threshold in (0.5, 0.75)]
    values = [
        precision[..., 0],
        *(precision[t, :, :, 0] for t in at),
        *(precision[..., a] for a in (1, 2, 3)),
        *(recall[:, :, 0, m] for m in (0, 1, 2)),
        *(recall[:, :, a, 2] for a in (1, 2, 3)),
    ]
    return dict(zip(MEASURE_NAMES, map(mean, values), strict=True))


def _class_names(ground_truth: GroundTruth) -> tuple[str, ...]:
    """Return the name of each category, followed by its id if several share the name."""
    names = list(ground_truth.categories.values())
    return tuple(
        name if names.count(name) == 1 else f"{name} ({category_id})"
        for category_id, name in ground_truth.categories.items()
    )


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
    overlap = box_overlap(
        boxes_xywh(rows.boxes),
        np.array([annotation["bbox"] for annotation in objects], np.float64),
        np.zeros(len(objects), bool),
    )
    images = np.array([annotation["image_id"] for annotation in objects])
    found, near, ious = near_pairs(rows.image_ids, images, overlap, least=0.0)
    categories = np.array([annotation["category_id"] for annotation in objects])
    same = ious.max(initial=0.0, where=rows.category_ids[found] == categories[near])
    any_class = ious.max(initial=0.0)
    guess = "the classes seem mixed up" if any_class >= 0.5 > same else "the detector has hardly learned"
    return (
        f"no box fits its object: the best overlap with an object of the same class is IoU {same:.2f}, of any class "
        f"{any_class:.2f}; the highest score is {rows.scores.max():.3g}: {guess}"
    )


def _ids(ids: Iterable[int]) -> str:
    ordered = sorted(ids)
    more = f", ... ({len(ordered)} in all)" if len(ordered) > _MAX_SHOWN_IDS else ""
    return "[" + ", ".join(map(str, ordered[:_MAX_SHOWN_IDS])) + more + "]"
