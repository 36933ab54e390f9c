"""Detections in file formats of other tools; regions of Label Studio: https://labelstud.io/guide/export.

The files contain the detections that are drawn, in pixels of the annotated image, rounded as in detections.json.
"""

import csv
import io
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem
from object_detection.coco.run_length_masks import mask_areas
from program_support.atomic_files import report_write_errors, write_bytes
from program_support.errors import InputError, nearest_name

FROM_NAME, TO_NAME = "label", "image"  # names in the labeling configuration that is written here


def rectangle_region(
    box: Sequence[float],
    label: str,
    *,
    identifier: str,
    size: tuple[int, int],
    from_name: str = FROM_NAME,
    to_name: str = TO_NAME,
) -> dict[str, Any]:
    """Return a region of an annotation or a prediction, whose box is in percent of the image's sides.

    Args:
        box: x, y, width and height in pixels.
        label: name of the class in the labeling configuration.
        identifier: id of the region in its task.
        size: width and height of the image.
        from_name: name of the configuration's `<RectangleLabels>`.
        to_name: name of its `<Image>`.
    """
    percent = [round(float(100 * value / side), 4) for value, side in zip(box, size * 2, strict=True)]
    return {
        "id": identifier,
        "type": "rectanglelabels",
        "from_name": from_name,
        "to_name": to_name,
        "original_width": size[0],
        "original_height": size[1],
        "image_rotation": 0,
        "value": {
            **dict(zip(("x", "y", "width", "height"), percent, strict=True)),
            "rotation": 0,
            "rectanglelabels": [label],
        },
    }


def prediction(regions: Sequence[dict[str, Any]], scores: Sequence[float], *, model_version: str) -> dict[str, Any]:
    """Return a task's prediction of regions with these scores; its own score is their mean."""
    scored = [{**region, "score": score} for region, score in zip(regions, scores, strict=True)]
    mean = math.fsum(scores) / len(scores) if scores else 0.0
    return {"model_version": model_version, "score": mean, "result": scored}


def task_data(file_name: str) -> dict[str, str]:
    """Return the data of a task whose image is in a local storage of Label Studio, by its name below the root."""
    return {TO_NAME: f"/data/local-files/?d={quote(os.fsencode(file_name))}"}


def labeling_configuration(names: Sequence[str]) -> str:
    """Return the labeling configuration of a project with rectangles of these classes."""
    from xml.sax.saxutils import quoteattr  # with urllib.request, 20 ms

    labels = "".join(f"    <Label value={quoteattr(name)}/>\n" for name in names)
    return (
        f'<View>\n  <Image name="{TO_NAME}" value="${TO_NAME}"/>\n'
        f'  <RectangleLabels name="{FROM_NAME}" toName="{TO_NAME}">\n{labels}  </RectangleLabels>\n</View>\n'
    )


_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets evaluate cells that begin with one, unless after a '
FORMATS = {  # format -> what is written into the output folder
    "coco": ("coco.json",),
    "yolo": ("yolo",),
    "csv": ("detections.csv",),
    "label_studio": ("label_studio.json", "label_studio.xml"),
}
_COLUMNS = ("filename", "width", "height", "class", "category_id", "score", "xmin", "ymin", "xmax", "ymax")


def chosen_formats(names: Sequence[str]) -> tuple[str, ...]:
    """Return the formats in --format, each once.

    Raises:
        InputError: for an unknown one.
    """
    for name in names:
        if name not in FORMATS:
            nearest = nearest_name(name, FORMATS)
            raise InputError(
                f"--format={','.join(names)}: {name!r} is unknown; expected any of {', '.join(FORMATS)}"
                + (f"; did you mean {nearest}?" if nearest else "")
            )
    return tuple(dict.fromkeys(names))


def names_of_files(formats: Sequence[str]) -> list[str]:
    """Return the names of what `ResultFiles` writes into the output folder."""
    return [name for each in formats for name in FORMATS[each]]


def write_output(path: Path, content: bytes, *, flush: bool = False) -> None:
    """Write a file atomically, creating its folder if necessary.

    Raises:
        InputError: with the path.
    """
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content, flush=flush)


class _Image(NamedTuple):
    """An image with its results, see `results_json`, and the numbers of their classes."""

    entry: dict[str, Any]  # of COCO
    results: Sequence[dict[str, Any]]
    classes: list[int]

    @property
    def size(self) -> tuple[int, int]:
        return self.entry["width"], self.entry["height"]


class ResultFiles:
    """Writer of result files into a folder.

    Its files: coco.json, detections.csv, label_studio.json and .xml, yolo/classes.txt, yolo/labels/STEM.txt.
    """

    def __init__(
        self,
        folder: str,
        names: ClassNames,
        *,
        formats: Sequence[str] = (),
        for_labeling: bool = False,
        storage_folder: str = "",
    ):
        """Create a writer.

        Args:
            folder: Output folder.
            names: Classes of the detections.
            formats: See `chosen_formats`.
            for_labeling: For labeling programs, which read lines of five numbers in YOLO's format, and COCO's classes
                from 1 on.
            storage_folder: Folder of the images below the root of Label Studio's local storages, with "/" at its end.
        """
        self._folder, self._names, self._formats = Path(folder), names, formats
        self._for_labeling, self._storage_folder = for_labeling, storage_folder
        self._images: list[_Image] = []
        self._stems: set[str] = set()

    def add(
        self,
        stem: str,
        file_name: str | None,
        image_id: int,
        *,
        size: tuple[int, int],
        results: Sequence[dict[str, Any]],
    ) -> None:
        """Add the detections of an image, see `results_json`.

        file_name: default: STEM.jpg, made distinct. size: height and width of the image.
        """
        stem = distinct_stem(stem, self._stems)
        entry = {"id": image_id, "file_name": file_name or f"{stem}.jpg", "width": size[1], "height": size[0]}
        ids = [result["category_id"] for result in results]
        image = _Image(entry, results, np.searchsorted(self._names.category_ids, ids).tolist())
        if {*self._formats} - {"yolo"}:
            self._images.append(image)
        if "yolo" in self._formats:
            write_output(self._folder / "yolo" / "labels" / f"{stem}.txt", self._yolo_lines(image).encode())

    def write(self) -> None:
        """Write the files that cover all images."""
        if "coco" in self._formats:
            write_output(self._folder / "coco.json", json.dumps(self._coco()).encode(), flush=True)
        if "yolo" in self._formats:
            classes = "".join(f"{name}\n" for name in self._names.names)
            write_output(self._folder / "yolo" / "classes.txt", classes.encode())
        if "label_studio" in self._formats:
            tasks = [self._task(image) for image in self._images]
            write_output(self._folder / "label_studio.json", json.dumps(tasks).encode(), flush=True)
            configuration = labeling_configuration(self._names.names)
            write_output(self._folder / "label_studio.xml", configuration.encode())
        if "csv" in self._formats:
            text = io.StringIO(newline="")
            csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *self._csv_rows()])
            write_output(self._folder / "detections.csv", text.getvalue().encode(errors="backslashreplace"), flush=True)

    def _coco(self) -> dict[str, Any]:
        names = self._names.numbered_from_one() if self._for_labeling else self._names
        annotations: list[dict[str, Any]] = []
        for image in self._images:
            for index, result in zip(image.classes, image.results, strict=True):
                area = round(result["bbox"][2] * result["bbox"][3], 4)
                if "segmentation" in result:
                    [area] = mask_areas([result["segmentation"]]).tolist()
                # CVAT reads a box as a rectangle by its empty segmentation, and refuses the file without one.
                head = {"id": len(annotations) + 1, "segmentation": [], **result, "iscrowd": 0, "area": area}
                annotations.append(head | {"category_id": names.category_ids[index]})
        images = [image.entry for image in self._images]
        return {"images": images, "categories": names.to_categories(), "annotations": annotations}

    def _yolo_lines(self, image: _Image) -> str:
        lines, (width, height) = [], image.size
        for index, result in zip(image.classes, image.results, strict=True):
            x, y, box_width, box_height = result["bbox"]
            shares = (x + box_width / 2) / width, (y + box_height / 2) / height, box_width / width, box_height / height
            score = [] if self._for_labeling else [f"{result['score']:g}"]
            lines.append(" ".join([str(index), *(f"{share:.7f}" for share in shares), *score]) + "\n")
        return "".join(lines)

    def _task(self, image: _Image) -> dict[str, Any]:
        """Return a task of Label Studio with the detections as a prediction."""
        regions = [
            rectangle_region(result["bbox"], self._names.names[index], identifier=f"detection{number}", size=image.size)
            for number, (index, result) in enumerate(zip(image.classes, image.results, strict=True))
        ]
        proposed = prediction(regions, [result["score"] for result in image.results], model_version="detections")
        return {"data": task_data(self._storage_folder + image.entry["file_name"]), "predictions": [proposed]}

    def _csv_rows(self) -> list[list[Any]]:
        rows = []
        for image in self._images:
            for index, result in zip(image.classes, image.results, strict=True):
                x, y, width, height = result["bbox"]
                file_name, name = (
                    f"'{text}" if text.startswith(_FORMULA) else text
                    for text in (image.entry["file_name"], self._names.names[index])
                )
                box = x, y, round(x + width, 2), round(y + height, 2)
                rows.append([file_name, *image.size, name, result["category_id"], result["score"], *box])
        return rows
