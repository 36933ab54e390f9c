"""The page of suspect labels, on which each can be looked at, a list of them, and all labels as proposed."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.plugins.labeling.suspect_labels import KINDS, ErrorCount, Suspect, find_suspects, shown_errors
from efficientdet.reports.drawing import draw_detections, resized
from efficientdet.reports.html_page import image_row, legend, page, paragraph, table
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.matching import Comparison
from object_detection.coco.results import DetectionRows, boxes_xywh
from program_support.atomic_files import write_texts

_FEWEST_LISTED, _MOST_SHOWN = 20, 200
_COLORS = {"given label": (214, 48, 40), "proposed label": (44, 150, 80), "other labels": (150, 158, 166)}  # RGB
_LONGER_SIDE = 320  # pixels of a crop
_CONTEXT = 0.6, 24  # of a crop on each side: share of the box, and least pixels
_LEAD = (
    "Labels that contradict the detections, by expected harm: the probability of an error, times the share of COCO's "
    "IoU thresholds at which it counts. Look before you correct. A detector does not find an error that it has learned."
)
_FILES = "suspects.json: this list. proposed.json: all labels as proposed, in COCO's format, also for CVAT."


def write_suspects(
    folder: str,
    evaluator: CocoEvaluator,
    comparison: Comparison,
    rows: DetectionRows,
    *,
    index: RecordIndex,
    number_of: Mapping[int, int],
) -> str:
    """Write suspects.html, suspects.json and proposed.json; return a line about them.

    As many are listed as labels can be missing or of a wrong class, and at least 20.

    Args:
        folder: output folder.
        evaluator: the labels.
        comparison: `rows` compared with the labels.
        rows: detections by models that were not trained on the images.
        index: records of the images.
        number_of: number of the record of each image id.
    """
    suspects, counts = find_suspects(comparison, boxes_xywh(rows.boxes)[comparison.detected])
    listed = suspects[: max(round(shown_errors(counts).high), _FEWEST_LISTED)]
    categories = [{"id": number, "name": name} for number, name in evaluator.ground_truth.categories.items()]
    class_names = ClassNames.from_categories(categories)
    entries = {image["id"]: image for image in ground_truth_of_records(index, class_names)["images"]}
    images = [entries[image_id] for image_id in comparison.image_ids.tolist()]
    proposed = {
        "images": images,
        "annotations": list(_proposed_labels(comparison, listed, categories)),
        "categories": categories,
    }
    crops = _crops(comparison, listed[:_MOST_SHOWN], index, number_of)
    files = {
        "suspects.json": json.dumps([_listed(comparison, one, images[one.image]) for one in listed], indent=1) + "\n",
        "proposed.json": json.dumps(proposed) + "\n",
        "suspects.html": _page(comparison, listed, image_row(crops, thumbnails=True), counts=counts),
    }
    write_texts(folder, files)
    return f"{_figure(comparison, counts)}; suspect labels: {Path(folder, 'suspects.html')}"


def _figure(comparison: Comparison, counts: dict[str, ErrorCount]) -> str:
    """Return in words how many errors there are."""
    estimate, low, high = map(round, shown_errors(counts))
    labels = f"{len(comparison.object_boxes):,} labels of {len(comparison.image_ids):,} images"
    if not estimate:
        return f"{labels}: no missing label and no wrong class is shown, at most {high:,}"
    return f"{labels}: about {estimate:,} are missing or of a wrong class, {low:,} to {high:,}"


def _listed(comparison: Comparison, suspect: Suspect, image: dict[str, Any]) -> dict[str, Any]:
    """Return a suspect as JSON; `label` is null for a missing one, `proposal` for one to be removed."""

    def label(class_index: int, box: np.ndarray) -> dict[str, Any]:
        return {"category": comparison.names[class_index], "bbox": box.round(2).tolist()}

    row, box = suspect.label, suspect.box
    return {
        "image_id": image["id"],
        "file_name": image["file_name"],
        "kind": suspect.kind,
        "probability": round(suspect.probability, 4),
        "expected_harm": round(suspect.harm, 4),
        "label": None if row < 0 else label(comparison.objects.classes[row], comparison.object_boxes[row]),
        "proposal": None if box is None else label(suspect.class_index, box),
    }


def _proposed_labels(
    comparison: Comparison, suspects: list[Suspect], categories: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield COCO's annotation of each label, as proposed."""
    objects, is_crowd, changed = comparison.objects, comparison.flags.crowd, {one.label for one in suspects}
    labels: list[tuple[Any, ...]] = [
        (objects.images[row], objects.classes[row], comparison.object_boxes[row], is_crowd[row], {})
        for row in range(len(objects.classes))
        if row not in changed
    ] + [
        (one.image, one.class_index, one.box, False, {"attributes": {"suspect": one.kind}})
        for one in suspects
        if one.box is not None
    ]
    for number, (image, class_index, box, crowd, attributes) in enumerate(labels, start=1):
        yield {
            "id": number,
            "image_id": int(comparison.image_ids[image]),
            "category_id": categories[class_index]["id"],
            "bbox": box.round(2).tolist(),
            "area": round(float(box[2] * box[3]), 2),
            "iscrowd": int(crowd),
            "segmentation": [],  # CVAT reads it as a rectangle
            **attributes,
        }


def _page(comparison: Comparison, suspects: list[Suspect], crops: str, *, counts: dict[str, ErrorCount]) -> str:
    """Return the page as HTML."""
    listed = Counter(suspect.kind for suspect in suspects)
    rows = [
        (kind.replace("_", " "), listed[kind], f"{counts[kind].estimate:,.0f}", f"{counts[kind].high:,.0f}")
        for kind in KINDS
        if kind in counts
    ]
    total = len(suspects)
    first = paragraph(f"The first {_MOST_SHOWN} of {total:,}.") if total > _MOST_SHOWN else ""
    sections = {
        "Kinds": table(("Kind", "Listed", "Errors shown", "Errors at most"), rows),
        "Suspects": legend({name: f"rgb{color}" for name, color in _COLORS.items()}) + first + crops,
        "Files to correct them in": paragraph(_FILES),
    }
    return page("Suspect labels", sections, figure=_figure(comparison, counts), lead=_LEAD)


def _crops(
    comparison: Comparison, suspects: list[Suspect], index: RecordIndex, number_of: Mapping[int, int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the caption and the crop of each suspect, one image at a time."""
    numbers = [number_of[comparison.image_ids[suspect.image]] for suspect in suspects]
    for place, (suspect, image) in enumerate(zip(suspects, original_images(index, numbers), strict=True), start=1):
        parts = f"{place}. {_caption(comparison, suspect)}", f"{suspect.probability:.0%}", image.name
        yield " \N{MIDDLE DOT} ".join(parts), _crop(comparison, suspect, image.pixels)


def _caption(comparison: Comparison, suspect: Suspect) -> str:
    names, given = comparison.names, suspect.label
    label = names[suspect.class_index if given < 0 else comparison.objects.classes[given]]
    proposed = f", proposed {names[suspect.class_index]}" if suspect.kind == "wrong_class" else ""
    return f"{suspect.kind.replace('_', ' ')}: {label}{proposed}"


def _crop(comparison: Comparison, suspect: Suspect, pixels: np.ndarray) -> np.ndarray:
    """Return the surroundings of a suspect with its label, the proposal and other labels, uint8 [h, w, 3]."""
    rows, given = np.flatnonzero(comparison.objects.images == suspect.image), suspect.label
    drawn = [
        ("other labels", comparison.object_boxes[row], len(comparison.names)) for row in rows.tolist() if row != given
    ]
    others = len(drawn)
    if given >= 0:
        drawn.append(("given label", comparison.object_boxes[given], comparison.objects.classes[given]))
    if suspect.box is not None:
        drawn.append(("proposed label", suspect.box, suspect.class_index))
    kinds, boxes, classes = zip(*drawn, strict=True)
    corners = np.array([(y, x, y + height, x + width) for x, y, width, height in boxes])
    start, end = corners[others:, :2].min(axis=0), corners[others:, 2:].max(axis=0)
    margin = np.maximum(_CONTEXT[0] * (end - start), _CONTEXT[1])
    top, left = (start - margin).clip(0).astype(int)
    bottom, right = np.minimum(end + margin, pixels.shape[:2]).astype(int)
    crop = resized(pixels[top:bottom, left:right], longer_side=_LONGER_SIDE)
    return draw_detections(
        crop,
        (corners - (top, left, top, left)) * (crop.shape[0] / (bottom - top)),
        classes=classes,
        names=[*comparison.names, ""],
        colors=[_COLORS[kind] for kind in kinds],
    )
