"""Detections matched with the objects of the same images: the rows from which all metrics and analyses are computed."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from object_detection.coco.curves import Curves, curves
from object_detection.coco.matching import Instances, Matching, ObjectFlags, Overlap, match


class Outcomes(NamedTuple):
    """Result of each of D detections at IoU 0.5, for all object sizes."""

    matched_objects: np.ndarray  # [D] row of the object that a correct detection finds; -1: none
    counted: np.ndarray  # [D] bool: correct or wrong; False if it finds an ignored object or is not among the 100 best

    @property
    def right(self) -> np.ndarray:
        """[D] bool: correct detections."""
        return self.matched_objects >= 0

    @property
    def wrong(self) -> np.ndarray:
        """[D] bool: wrong detections."""
        return self.counted & ~self.right


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """D detections and G objects of I images, with consecutive numbers instead of the data set's ids."""

    image_ids: np.ndarray  # [I] ascending
    names: tuple[str, ...]  # K class names
    detected: np.ndarray  # [D] rows among all detections
    scores: np.ndarray  # [D]
    detections: Instances
    objects: Instances
    object_boxes: np.ndarray  # [G, 4] float64, x, y, width, height
    flags: ObjectFlags
    overlap: Overlap

    @cached_property
    def matching(self) -> Matching:
        """Which detection finds which object of its class."""
        return match(
            self.detections, self.scores, self.objects, self.flags, num_classes=len(self.names), overlap=self.overlap
        )

    @cached_property
    def curves(self) -> Curves:
        """Precision and recall curves."""
        return curves(self.detections, self.objects, self.flags.ignored, self.matching, num_classes=len(self.names))

    @cached_property
    def outcomes(self) -> Outcomes:
        """Correct and wrong detections at IoU 0.5."""
        matching = self.matching
        counted = np.zeros(len(self.scores), bool)
        counted[matching.by_class] = True
        counted[matching.rows[matching.to_ignore[:, 0, 0]]] = False
        object_of_detection = np.full(len(self.scores), -1)
        object_of_detection[matching.rows] = matching.objects
        return Outcomes(np.where(counted, object_of_detection, -1), counted)

    @property
    def class_counts(self) -> np.ndarray:
        """[K] number of objects to be found."""
        return np.bincount(self.objects.classes[~self.flags.ignored], minlength=len(self.names))
