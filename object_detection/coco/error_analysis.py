"""Error analysis of the detections of an evaluation, from one comparison with the objects.

Wrong detections have a type, and each type a cost in AP: TIDE (Bolya et al. 2020). As in the published program, with
COCO's own matching, ignored objects and mean (over the classes that have objects): a detection that misses its object
is compared with the object that it overlaps most. The foreground threshold is 0.5, the background threshold 0.1.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from object_detection.coco.matching import (
    IOU_THRESHOLDS,
    RECALL_THRESHOLDS,
    Comparison,
    Instances,
    ObjectFlags,
    average_precisions,
    match,
    near_pairs,
)
from object_detection.coco.score_calibration import (
    BestThreshold,
    Reliability,
    class_thresholds,
    overall_threshold,
    reliability,
)

ERROR_TYPES = {  # name -> description
    "classification": "a detection on an object of another class",
    "localization": "a poorly localized box of the correct class (IoU 0.1 to 0.5)",
    "both": "a poorly localized box of another class",
    "duplicate": "a further detection of an object that a better one matches",
    "background": "a detection on background (IoU with all objects below 0.1)",
    "missed": "an object without a detection near it",
}
_CLASSIFICATION, _LOCALIZATION, _BOTH, _DUPLICATE, _BACKGROUND, _MISSED = ERROR_TYPES
_FOREGROUND, _NEAR = IOU_THRESHOLDS[0], 0.1
SHOWN_IOU = {"IoU 0.50": 0, "IoU 0.75": int(np.argmin(abs(IOU_THRESHOLDS - 0.75)))}  # places in IOU_THRESHOLDS
SIZES = ("all", "small", "medium", "large")  # AREA_RANGES by name


class Errors(NamedTuple):
    """The error type of each of D detections, and the G objects that no detection is near."""

    types: np.ndarray  # [D] of ERROR_TYPES; "" if correct or not counted
    fixes: np.ndarray  # [D] row of the object to find without the error; -1: none, or found by another detection
    missed: np.ndarray  # [G] bool


@dataclass(frozen=True)
class ErrorCost:
    """Cost of one type of error."""

    count: int
    ap: float  # AP gained at IoU 0.5 without errors of this type, mean over classes; NaN if no object would be left
    class_ap: np.ndarray  # [K] AP gained per class; NaN where a class has no object


class ImageErrors(NamedTuple):
    """Errors of one image, for detections at or above the best threshold of their class."""

    image_id: int
    missed: np.ndarray  # rows of objects in the comparison
    wrong: np.ndarray  # rows of detections
    detected_objects: np.ndarray  # rows
    right: np.ndarray  # rows of detections


@dataclass(frozen=True, kw_only=True)
class ErrorAnalysis:
    """Errors of D detections and G objects of K classes, correct or wrong at IoU 0.5."""

    comparison: Comparison

    @cached_property
    def errors(self) -> Errors:
        """The type of each error."""
        return _find_errors(self.comparison)

    @cached_property
    def costs(self) -> dict[str, ErrorCost]:
        """Costs by type, in the order of ERROR_TYPES."""
        ap = {name: _nan_if_missing(values) for name, values in _error_costs(self.comparison, self.errors).items()}
        counts = {name: int((self.errors.types == name).sum()) for name in ERROR_TYPES}
        counts["missed"] = int(self.errors.missed.sum())
        return {
            name: ErrorCost(count, float(np.maximum(_mean(ap[name]) - _mean(ap[""]), 0.0)), ap[name] - ap[""])
            for name, count in counts.items()
        }

    def precision(self, place: int) -> np.ndarray:
        """Return precision [R, K] at RECALL_THRESHOLDS, at one of IOU_THRESHOLDS; NaN where a class has no object."""
        return _nan_if_missing(self.comparison.curves.precision[place, :, :, 0])

    @cached_property
    def class_ap(self) -> dict[str, np.ndarray]:
        """Return the AP of each class [K] at single thresholds and of each size; NaN where a class has no object."""
        curves = self.comparison.curves.precision
        values = {name: curves[place, :, :, 0].mean(axis=0) for name, place in SHOWN_IOU.items()}
        values |= {size: curves[..., number].mean(axis=(0, 1)) for number, size in enumerate(SIZES)}
        return {name: _nan_if_missing(ap) for name, ap in values.items()}

    @cached_property
    def thresholds(self) -> list[BestThreshold]:
        """Best threshold of each class."""
        return class_thresholds(self.comparison)

    @cached_property
    def threshold(self) -> BestThreshold:
        """Best threshold for all classes together."""
        return overall_threshold(self.comparison)

    @cached_property
    def above_threshold(self) -> np.ndarray:
        """[D] bool: detections at or above the best threshold of their class (overall threshold if it has none)."""
        scores = np.array([best.score for best in self.thresholds] or [np.nan])
        scores = np.where(np.isnan(scores), self.threshold.score, scores)
        return self.comparison.scores >= scores[self.comparison.detections.classes]

    @cached_property
    def confusion(self) -> np.ndarray:
        """[K+1, K+1] confusion matrix of the detections that are `above_threshold`."""
        return _confusion_matrix(self.comparison, self.above_threshold)

    @cached_property
    def reliability(self) -> Reliability:
        """Calibration of the scores of all detections that are correct or wrong."""
        counted = self.comparison.outcomes.counted
        return reliability(self.comparison.scores[counted], self.comparison.outcomes.right[counted])

    @cached_property
    def _outcome_rows(self) -> tuple[np.ndarray, ...]:
        """Rows of missed objects, wrong detections, detected objects and right detections, above the thresholds."""
        comparison, outcomes = self.comparison, self.comparison.outcomes
        right, wrong = (
            np.flatnonzero(self.above_threshold & outcomes.right),
            np.flatnonzero(self.above_threshold & outcomes.wrong),
        )
        detected_objects = outcomes.matched_objects[right]
        missed = np.setdiff1d(np.flatnonzero(~comparison.flags.ignored), detected_objects)
        return missed, wrong, detected_objects, right

    @cached_property
    def mistakes(self) -> np.ndarray:
        """[I] number of missed objects and wrong detections of each image."""
        comparison, (missed, wrong, _, _) = self.comparison, self._outcome_rows
        images = len(comparison.image_ids)
        return np.bincount(comparison.objects.images[missed], minlength=images) + np.bincount(
            comparison.detections.images[wrong], minlength=images
        )

    def errors_of(self, images: np.ndarray) -> list[ImageErrors]:
        """Return the errors of images, given by their places in `comparison.image_ids`."""
        missed, wrong, detected_objects, right = self._outcome_rows
        of_object, of_detection = self.comparison.objects.images, self.comparison.detections.images
        return [
            ImageErrors(
                int(self.comparison.image_ids[image]),
                missed[of_object[missed] == image],
                wrong[of_detection[wrong] == image],
                detected_objects[of_object[detected_objects] == image],
                right[of_detection[right] == image],
            )
            for image in images
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for `json.dump`; null where there is nothing to measure."""
        names, bins = self.comparison.names, self.reliability
        curves = {name: self.precision(place) for name, place in SHOWN_IOU.items()}

        def by_class(values: np.ndarray) -> dict[str, np.ndarray]:
            return dict(zip(names, values, strict=True))

        return _without_nan(
            {
                "errors": {
                    name: {"count": cost.count, "ap50": cost.ap, "ap50_by_class": by_class(cost.class_ap)}
                    for name, cost in self.costs.items()
                },
                "precision_recall": {
                    "recall": RECALL_THRESHOLDS,
                    **{
                        name: {"mean": np.apply_along_axis(_mean, 1, curve), "by_class": by_class(curve.T)}
                        for name, curve in curves.items()
                    },
                },
                "ap_by_class": {name: by_class(values) for name, values in self.class_ap.items()},
                "best_thresholds": {name: best._asdict() for name, best in zip(names, self.thresholds, strict=True)},
                "best_threshold": self.threshold._asdict(),
                "confusion": {
                    "rows": "objects",
                    "columns": "detections",
                    "names": [*names, "background"],
                    "counts": self.confusion,
                },
                "reliability": {
                    "expected_calibration_error": bins.expected_error,
                    "detections": bins.counts,
                    "score": bins.scores,
                    "precision": bins.precision,
                },
            }
        )


def _without_nan(value: Any) -> Any:
    """Return nested values for `json.dump`: lists for arrays, None for NaN, numbers with 6 digits."""
    if isinstance(value, dict):
        return {name: _without_nan(one) for name, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    if isinstance(value, float):
        return None if np.isnan(value) else round(value, 6)
    return value


def _confusion_matrix(comparison: Comparison, is_shown: np.ndarray) -> np.ndarray:
    """Return counts [K+1, K+1]: rows are classes of objects, columns of detections; the last is the background.

    A detection belongs to the object of its class that it finds at IoU 0.5. The others, by falling score, belong to the
    unmatched object of any class that they overlap most. Ignored objects and detections that find them are not counted.
    `is_shown` is [D] bool.
    """
    outcomes, background = comparison.outcomes, len(comparison.names)
    class_of_detection, class_of_object = comparison.detections.classes, comparison.objects.classes
    object_of_detection = np.where(is_shown, outcomes.matched_objects, -1)
    free = ~comparison.flags.ignored
    free[object_of_detection[object_of_detection >= 0]] = False
    others, objects = np.flatnonzero(is_shown & outcomes.wrong), np.flatnonzero(free)
    of_any_class = match(
        _as_one_class(comparison.detections, others),
        comparison.scores[others],
        _as_one_class(comparison.objects, objects),
        ObjectFlags(*np.zeros((2, len(objects)), bool)),
        num_classes=1,
        overlap=lambda here, there: comparison.overlap(others[here], objects[there]),
    )
    object_of_detection[others[of_any_class.rows]] = np.where(
        of_any_class.objects < 0, -1, objects[of_any_class.objects]
    )
    counted = np.flatnonzero(is_shown & outcomes.counted)
    on_object = counted[object_of_detection[counted] >= 0]
    matrix = np.zeros((background + 1, background + 1), np.int64)
    np.add.at(matrix, (class_of_object[object_of_detection[on_object]], class_of_detection[on_object]), 1)
    np.add.at(matrix[background], class_of_detection[counted[object_of_detection[counted] < 0]], 1)
    missed = comparison.class_counts - matrix[:background].sum(axis=1)
    matrix[:background, background] = missed
    return matrix


def _as_one_class(instances: Instances, rows: np.ndarray) -> Instances:
    return Instances(instances.images[rows], np.zeros(len(rows), np.int64), instances.areas[rows])


def _nan_if_missing(values: np.ndarray) -> np.ndarray:
    """Return the values with NaN instead of the -1 of a class without objects."""
    return np.where(values < 0, np.nan, values)


def _mean(values: np.ndarray) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else np.nan


def _find_errors(comparison: Comparison) -> Errors:
    """Return one error type for each wrong detection, and the objects without a detection near them."""
    outcomes, (detections, objects) = comparison.outcomes, (comparison.detections, comparison.objects)
    wrong, real = np.flatnonzero(outcomes.wrong), np.flatnonzero(~comparison.flags.ignored)
    rows, found, ious = near_pairs(
        detections.images[wrong],
        objects.images[real],
        lambda here, there: comparison.overlap(wrong[here], real[there]),
        least=_NEAR,
    )
    rows, found = wrong[rows], real[found]
    is_same = detections.classes[rows] == objects.classes[found]

    def nearest(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest IoU of each detection, [D], and its object, the first of equals."""
        pairs = pairs[np.lexsort((-found[pairs], ious[pairs]))]  # of several values of a row the last is kept
        largest, objects = np.zeros(len(outcomes.wrong)), np.full(len(outcomes.wrong), -1)
        largest[rows[pairs]], objects[rows[pairs]] = ious[pairs], found[pairs]
        return largest, objects

    (same, own_object), (other, other_object) = nearest(np.flatnonzero(is_same)), nearest(np.flatnonzero(~is_same))
    badly_placed = (same >= _NEAR) & (same <= _FOREGROUND)
    types = np.select(
        [~outcomes.wrong, badly_placed, other >= _FOREGROUND, same >= _FOREGROUND, np.maximum(same, other) <= _NEAR],
        ["", _LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND],
        _BOTH,
    )
    target = np.select([badly_placed, other >= _FOREGROUND], [own_object, other_object], -1)
    detected_objects = outcomes.matched_objects[outcomes.right]
    target[np.isin(target, detected_objects)] = -1  # once fixed it would be a duplicate
    missed = ~comparison.flags.ignored
    missed[np.append(detected_objects, target[target >= 0])] = False
    return Errors(types, _best_of_each(target, comparison.scores), missed)


def _best_of_each(target: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the object that each detection is near, [D]; -1 also where a better detection is near the same object."""
    best = np.full(len(target), -1)
    order = np.argsort(-scores, kind="stable")
    order = order[target[order] >= 0]
    _, first = np.unique(target[order], return_index=True)
    best[order[first]] = target[order[first]]
    return best


def _error_costs(comparison: Comparison, errors: Errors) -> dict[str, np.ndarray]:
    """Return the AP [K] of the classes at IoU 0.5 without the errors of each type; under "" the actual AP.

    -1: the class has no object. Detections with a wrong box or class are corrected; detections that would then be
    duplicates, and all others, are removed. Missed objects are no longer counted as objects.
    """
    outcomes, objects = comparison.outcomes, comparison.objects
    by_image = np.argsort(comparison.detections.images, kind="stable")  # the order that breaks ties of scores
    by_image = by_image[outcomes.counted[by_image]]
    costs = {}
    for error in ("", *ERROR_TYPES):
        fixed = (errors.types == error) & (errors.fixes >= 0)
        rows = by_image[(errors.types[by_image] != error) | outcomes.right[by_image] | fixed[by_image]]
        classes = comparison.detections.classes.copy()
        classes[fixed] = objects.classes[errors.fixes[fixed]]
        counts = comparison.class_counts
        if error == _MISSED:
            counts = counts - np.bincount(objects.classes[errors.missed], minlength=len(counts))
        costs[error] = average_precisions(
            classes[rows], comparison.scores[rows], (outcomes.right | fixed)[rows], counts
        )
    return costs
