"""Detections matched with the objects of the same images: the rows from which all metrics and analyses are computed."""

from collections.abc import Iterator
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

    def images(
        self, detections: np.ndarray, objects: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield rows of detections, rows of objects and their IoU [n, m] for each image that has both."""
        sides = []
        for rows, numbers in ((detections, self.detections.images), (objects, self.objects.images)):
            rows = rows[np.argsort(numbers[rows], kind="stable")]
            sides.append((rows, np.searchsorted(numbers[rows], np.arange(len(self.image_ids) + 1))))
        (detections, d_ends), (objects, g_ends) = sides
        for image in np.flatnonzero((np.diff(d_ends) > 0) & (np.diff(g_ends) > 0)).tolist():
            here, there = detections[d_ends[image] : d_ends[image + 1]], objects[g_ends[image] : g_ends[image + 1]]
            yield here, there, self.overlap(here[:, None], there)
