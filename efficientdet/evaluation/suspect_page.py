"""The page of suspect labels, on which each can be looked at, and the files to correct them in.

The files have COCO's format, which CVAT imports, Label Studio's tasks, and a list.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.inference.label_studio_regions import labeling_configuration, rectangle_region, task_data
from efficientdet.reports.drawing import draw_detections, resized
from efficientdet.reports.html_page import image_row, legend, page, paragraph, table
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.matching import Comparison
from object_detection.coco.results import DetectionRows, boxes_xywh
from object_detection.coco.suspect_labels import KINDS, Suspect, expected_errors, find_suspects
from program_support.atomic_files import report_write_errors, write_text

PAGE = "suspects.html"
_FEWEST_LISTED, _MOST_SHOWN = 20, 200
_COLORS = {"given label": (214, 48, 40), "proposed label": (44, 150, 80), "other labels": (150, 158, 166)}  # RGB
_LONGER_SIDE = 320  # pixels of a crop
_CONTEXT = 0.6, 24  # of a crop on each side: share of the box, and least pixels
_LEAD = (
    "Labels that contradict the detections, by expected harm: the probability of an error, times the share of COCO's "
    "IoU thresholds at which it counts. Look before you correct. A detector does not find an error that it has learned."
)


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


def write_suspects(
    folder: str,
    evaluator: CocoEvaluator,
    comparison: Comparison,
    rows: DetectionRows,
    *,
    index: RecordIndex,
    record_numbers: Sequence[int],
) -> str:
    """Write suspects.html and the files of `ListedSuspects`; return a line about them.

    As many are listed as there are errors by the sum of the probabilities, and at least 20.

    Args:
        folder: output folder.
        evaluator: the labels.
        comparison: `rows` compared with the labels.
        rows: detections by models that were not trained on the images.
        index: records of the images.
        record_numbers: numbers of the records of `rows.evaluated_ids`.
    """
    suspects = find_suspects(comparison, boxes_xywh(rows.boxes)[comparison.detected])
    expected = expected_errors(suspects)
    categories = [{"id": number, "name": name} for number, name in evaluator.ground_truth.categories.items()]
    of_records = ground_truth_of_records(index, ClassNames.from_categories(categories))
    entries = {image["id"]: image for image in of_records["images"]}
    listed = ListedSuspects(
        comparison=comparison,
        suspects=suspects[: max(expected, _FEWEST_LISTED)],
        images=[entries[image_id] for image_id in comparison.image_ids.tolist()],
        categories=of_records["categories"],
    )
    number_of = dict(zip(rows.evaluated_ids.tolist(), record_numbers, strict=True))
    shown = listed.suspects[:_MOST_SHOWN]
    numbers = [number_of[comparison.image_ids[suspect.image]] for suspect in shown]
    crops = (
        (
            f"{place}. {_caption(suspect, listed)} \N{MIDDLE DOT} {image.name}",
            _crop(suspect, listed, image.pixels),
        )
        for place, (suspect, image) in enumerate(zip(shown, original_images(index, numbers), strict=True), start=1)
    )
    files = listed.files() | {PAGE: _page(listed, crops, expected=expected)}
    for name, text in files.items():
        with report_write_errors(path := Path(folder, name)):
            write_text(path, text)
    return f"about {expected} errors in {len(comparison.object_boxes)} labels; suspect labels: {Path(folder, PAGE)}"


def _page(listed: ListedSuspects, crops: Iterable[tuple[str, np.ndarray]], *, expected: int) -> str:
    """Return the page as HTML."""
    count, total = len(listed.comparison.object_boxes), len(listed.suspects)
    rows = [
        (kind.replace("_", " "), len(of_kind), f"{sum(suspect.probability for suspect in of_kind):.1f}")
        for kind in KINDS
        if (of_kind := [suspect for suspect in listed.suspects if suspect.kind == kind])
    ]
    colors = legend({name: f"rgb{color}" for name, color in _COLORS.items()})
    first = paragraph(f"The first {_MOST_SHOWN} of {total:,}.") if total > _MOST_SHOWN else ""
    files = (
        "suspects.json: this list. proposed.json: all labels as proposed, in COCO's format, also for CVAT. "
        "label_studio.json: tasks with the given labels and the proposed ones as predictions; label_studio.xml: the "
        "labeling configuration."
    )
    sections = {
        "Kinds": table(("Kind", "Listed", "Expected errors among them"), rows),
        "Suspects": colors + first + image_row(crops, thumbnails=True),
        "Files to correct them in": paragraph(files),
    }
    figure = f"About {expected:,} errors in {count:,} labels of {len(listed.images):,} images"
    return page("Suspect labels", sections, figure=figure, lead=_LEAD)


def _caption(suspect: Suspect, listed: ListedSuspects) -> str:
    names, given = listed.comparison.names, listed.label_of(suspect)
    label = names[suspect.class_index if given is None else given.class_index]
    proposed = f", proposed {names[suspect.class_index]}" if suspect.kind == "wrong_class" else ""
    return f"{suspect.kind.replace('_', ' ')}: {label}{proposed} \N{MIDDLE DOT} {suspect.probability:.0%}"


def _crop(suspect: Suspect, listed: ListedSuspects, pixels: np.ndarray) -> np.ndarray:
    """Return the surroundings of a suspect with its label, the proposal and other labels, uint8 [h, w, 3]."""
    comparison, given = listed.comparison, listed.label_of(suspect)
    others = np.flatnonzero(comparison.objects.images == suspect.image)
    others = comparison.object_boxes[others[others != suspect.label]]
    drawn = [("other labels", box, len(comparison.names)) for box in others]
    shown = [("given label", given.box, given.class_index)] if given else []
    if suspect.box is not None:
        shown.append(("proposed label", suspect.box, suspect.class_index))
    kinds, boxes, classes = zip(*drawn, *shown, strict=True)
    corners = np.array([(y, x, y + height, x + width) for x, y, width, height in boxes])
    around = np.array(boxes[len(drawn) :])
    start, end = around[:, :2].min(axis=0), (around[:, :2] + around[:, 2:]).max(axis=0)
    margin = np.maximum(_CONTEXT[0] * (end - start), _CONTEXT[1])
    limits = np.array(pixels.shape[1::-1])
    (left, top), (right, bottom) = (start - margin).clip(0).astype(int), np.minimum(end + margin, limits).astype(int)
    crop = resized(pixels[top:bottom, left:right], longer_side=_LONGER_SIDE)
    scale = crop.shape[0] / (bottom - top)
    return draw_detections(
        crop,
        (corners - (top, left, top, left)) * scale,
        classes=classes,
        names=[*comparison.names, ""],
        colors=[_COLORS[kind] for kind in kinds],
    )
