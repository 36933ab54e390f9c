"""Types of errors of wrong detections, and the AP that each type costs: TIDE (Bolya et al. 2020).

As in the published program, with COCO's own matching, ignored objects and mean (over the classes that have objects): a
detection that misses its object is compared with the object that it overlaps most. The foreground threshold is 0.5, the
background threshold 0.1.
"""

from typing import NamedTuple

import numpy as np

from object_detection.coco.comparison import Comparison, average_precisions
from object_detection.coco.matching import IOU_THRESHOLDS, near_pairs

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
