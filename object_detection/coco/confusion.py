"""Confusion matrix of detections above their score thresholds."""

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.matching import Instances, ObjectFlags, match


def confusion_matrix(comparison: Comparison, is_shown: np.ndarray) -> np.ndarray:
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
