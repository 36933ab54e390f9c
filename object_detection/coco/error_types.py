"""Types of errors of wrong detections, and the AP that each type costs: TIDE (Bolya et al. 2020).

As in the published program, with COCO's own matching, ignored objects and mean (over the classes that have objects): a
detection that misses its object is compared with the object that it overlaps most. The foreground threshold is 0.5, the
background threshold 0.1.
"""

from typing import NamedTuple

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.curves import average_precisions
from object_detection.coco.matching import IOU_THRESHOLDS

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


class Errors(NamedTuple):
    """The error type of each of D detections, and the G objects that no detection is near."""

    types: np.ndarray  # [D] of ERROR_TYPES; "" if correct or not counted
    fixes: np.ndarray  # [D] row of the object to find without the error; -1: none, or found by another detection
    missed: np.ndarray  # [G] bool


def find_errors(comparison: Comparison) -> Errors:
    """Return one error type for each wrong detection, and the objects without a detection near them."""
    outcomes, classes = comparison.outcomes, comparison.objects.classes
    types = np.where(outcomes.wrong, _BACKGROUND, np.array("", f"<U{max(map(len, ERROR_TYPES))}"))
    target = np.full(len(types), -1)
    real = ~comparison.flags.ignored
    for here, there, overlaps in comparison.images(np.flatnonzero(outcomes.wrong), np.flatnonzero(real)):
        same = comparison.detections.classes[here, None] == classes[there]
        same_class, other = np.where(same, overlaps, 0.0), np.where(same, 0.0, overlaps)
        to_own, to_other, rows = same_class.argmax(axis=1), other.argmax(axis=1), np.arange(len(here))
        same_class, other = same_class[rows, to_own], other[rows, to_other]
        badly_placed = (same_class >= _NEAR) & (same_class <= _FOREGROUND)
        types[here] = np.select(
            [badly_placed, other >= _FOREGROUND, same_class >= _FOREGROUND, np.maximum(same_class, other) <= _NEAR],
            [_LOCALIZATION, _CLASSIFICATION, _DUPLICATE, _BACKGROUND],
            _BOTH,
        )
        target[here] = np.select([badly_placed, other >= _FOREGROUND], [there[to_own], there[to_other]], -1)
    detected_objects = outcomes.matched_objects[outcomes.right]
    target[np.isin(target, detected_objects)] = -1  # once fixed it would be a duplicate
    missed = real & ~np.isin(np.arange(len(real)), np.concatenate([detected_objects, target]))
    return Errors(types, _best_of_each(target, comparison.scores), missed)


def _best_of_each(target: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the object that each detection is near, [D]; -1 also where a better detection is near the same object."""
    best = np.full(len(target), -1)
    order = np.argsort(-scores, kind="stable")
    order = order[target[order] >= 0]
    _, first = np.unique(target[order], return_index=True)
    best[order[first]] = target[order[first]]
    return best


def error_costs(comparison: Comparison, errors: Errors) -> dict[str, np.ndarray]:
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
