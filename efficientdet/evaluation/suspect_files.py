"""Files to correct suspect labels in: COCO's format, which CVAT imports, Label Studio's tasks, and a list."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from efficientdet.inference.label_studio_regions import (
    labeling_configuration,
    rectangle_region,
    task_data,
)
from object_detection.coco.comparison import Comparison
from object_detection.coco.suspect_labels import Suspect


class Label(NamedTuple):
    """A label that is given or proposed."""

    box: np.ndarray  # [4] x, y, width, height
    class_index: int
    is_crowd: bool = False
    suspect: Suspect | None = None


@dataclass(frozen=True, kw_only=True)
class ListedSuspects:
    """Suspects of a comparison by falling expected harm, and what their files need."""

    comparison: Comparison
    suspects: list[Suspect]
    images: list[dict[str, Any]]  # COCO's entry of each image of the comparison
    categories: list[dict[str, Any]]  # COCO's entry of each class of the comparison

    def files(self) -> dict[str, str]:
        """Return the content of each file by its name."""
        return {
            "suspects.json": json.dumps(list(self._list()), indent=1) + "\n",
            "proposed.json": json.dumps(self._coco()) + "\n",
            "label_studio.json": json.dumps(list(self._tasks()), indent=1) + "\n",
            "label_studio.xml": labeling_configuration([category["name"] for category in self.categories]),
        }

    def label_of(self, suspect: Suspect) -> Label | None:
        """Return the given label of a suspect; None for a missing one."""
        return None if suspect.label < 0 else self._given(suspect.label)

    def _given(self, number: int) -> Label:
        """Return a label by its row in the comparison."""
        objects = self.comparison.objects
        is_crowd = bool(self.comparison.flags.crowd[number])
        return Label(self.comparison.object_boxes[number], int(objects.classes[number]), is_crowd)

    @cached_property
    def _rows(self) -> list[np.ndarray]:
        """Rows of the labels of each image."""
        images = self.comparison.objects.images
        return [np.flatnonzero(images == number) for number in range(len(self.images))]

    @cached_property
    def _proposals(self) -> list[list[Label]]:
        """The labels of each image, as proposed."""
        suspect_of = {one.label: one for one in self.suspects}
        labels = [
            [self._proposal(suspect_of[row]) if row in suspect_of else self._given(row) for row in rows.tolist()]
            for rows in self._rows
        ]
        for one in self.suspects:
            if one.label < 0:
                labels[one.image].append(self._proposal(one))
        return [[label for label in of_image if label is not None] for of_image in labels]

    @staticmethod
    def _proposal(suspect: Suspect) -> Label | None:
        return None if suspect.box is None else Label(suspect.box, suspect.class_index, suspect=suspect)

    def _list(self) -> Iterator[dict[str, Any]]:
        """Yield each suspect; `label` is null for a missing one, `proposal` for one to be removed."""
        for one in self.suspects:
            given, proposed = (
                None
                if label is None
                else {
                    "category_id": self.categories[label.class_index]["id"],
                    "category": self.categories[label.class_index]["name"],
                    "bbox": label.box.round(2).tolist(),
                }
                for label in (self.label_of(one), self._proposal(one))
            )
            yield {
                "image_id": self.images[one.image]["id"],
                "file_name": self.images[one.image]["file_name"],
                "kind": one.kind,
                "probability": round(one.probability, 4),
                "expected_harm": round(one.harm, 4),
                "label": given,
                "proposal": proposed,
            }

    def _coco(self) -> dict[str, Any]:
        """Return all images with the proposed labels; CVAT reads an empty segmentation as a rectangle."""
        categories = ClassNames.from_categories(self.categories).numbered_from_one().to_categories()
        annotations = [
            {
                "image_id": image["id"],
                "category_id": categories[label.class_index]["id"],
                "bbox": label.box.round(2).tolist(),
                "area": round(float(label.box[2] * label.box[3]), 2),
                "iscrowd": int(label.is_crowd),
                "segmentation": [],
                **({"attributes": {"suspect": label.suspect.kind}} if label.suspect else {}),
            }
            for image, labels in zip(self.images, self._proposals, strict=True)
            for label in labels
        ]
        numbered = [{"id": number, **one} for number, one in enumerate(annotations, start=1)]
        return {"images": self.images, "annotations": numbered, "categories": categories}

    def _tasks(self) -> Iterator[dict[str, Any]]:
        """Yield Label Studio's task of each image with suspects: its labels, and the proposed ones as a prediction."""
        for number in dict.fromkeys(one.image for one in self.suspects):
            image = self.images[number]
            given = [self._given(row) for row in self._rows[number].tolist()]
            yield {
                "data": task_data(image["file_name"]),
                "annotations": [{"result": self._regions(image, given)}],
                "predictions": [{"model_version": "suspects", "result": self._regions(image, self._proposals[number])}],
            }

    def _regions(self, image: dict[str, Any], labels: list[Label]) -> list[dict[str, Any]]:
        """Return the labels as regions."""
        size = image["width"], image["height"]
        return [
            rectangle_region(
                label.box.tolist(), self.categories[label.class_index]["name"], identifier=f"label{number}", size=size
            )
            | ({"meta": {"text": [label.suspect.kind]}} if label.suspect else {})
            for number, label in enumerate(labels)
        ]
