"""Detections in file formats of other tools, and crops of the detected objects.

The files contain the detections that are drawn, in pixels of the annotated image, rounded as in detections.json.
"""

import csv
import io
import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.files.image_files import distinct_stem, encode_image, folder_names
from efficientdet.inference.label_studio_regions import (
    labeling_configuration,
    prediction,
    rectangle_region,
    task_data,
)
from efficientdet.options.infer import TRACK_FORMATS
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import mask_areas
from program_support.atomic_files import report_write_errors, write_bytes
from program_support.errors import InputError, nearest_name

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # spreadsheets evaluate cells that begin with one, unless after a '
FORMATS = ("coco", "yolo", "csv", "label_studio", *TRACK_FORMATS)
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


def names_of_files(formats: Sequence[str], *, crops: bool) -> list[str]:
    """Return the names of what `ResultFiles` and the track files write into the output folder."""
    names = {
        "coco": ["coco.json"],
        "csv": ["detections.csv"],
        "yolo": ["yolo"],
        "label_studio": ["label_studio.json", "label_studio.xml"],
        **{name: [name] for name in TRACK_FORMATS},
    }
    return [name for each in formats for name in names[each]] + ["crops"] * crops


def write_output(path: Path, content: bytes, *, flush: bool = False) -> None:
    """Write a file atomically, creating its folder if necessary.

    Raises:
        InputError: with the path.
    """
    with report_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content, flush=flush)


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
        self._coco_names = names.numbered_from_one() if for_labeling else names
        self._images: list[dict[str, Any]] = []
        self._annotations: list[dict[str, Any]] = []
        self._lines: list[list] = []
        self._tasks: list[dict[str, Any]] = []
        self._stems: set[str] = set()

    def add(
        self,
        stem: str,
        file_name: str | None,
        image_id: int,
        *,
        size: tuple[int, int],
        results: Sequence[dict[str, Any]],
    ) -> str:
        """Add the detections of an image, see `results_json`, and return its stem, made distinct.

        file_name: default: STEM.jpg. size: height and width of the image.
        """
        stem = distinct_stem(stem, self._stems)
        height, width = size
        image = {"id": image_id, "file_name": file_name or f"{stem}.jpg", "width": width, "height": height}
        ids = [result["category_id"] for result in results]
        classes = np.searchsorted(self._names.category_ids, ids).tolist()
        if "coco" in self._formats:
            self._images.append(image)
            for index, result in zip(classes, results, strict=True):
                area = round(result["bbox"][2] * result["bbox"][3], 4)
                if "segmentation" in result:
                    [area] = mask_areas([result["segmentation"]]).tolist()
                # CVAT reads a box as a rectangle by its empty segmentation, and refuses the file without one.
                annotation = {
                    "id": len(self._annotations) + 1,
                    "segmentation": [],
                    **result,
                    "iscrowd": 0,
                    "area": area,
                }
                self._annotations.append(annotation | {"category_id": self._coco_names.category_ids[index]})
        if "yolo" in self._formats:
            lines = [
                _yolo_line(index, result, width=width, height=height, has_score=not self._for_labeling)
                for index, result in zip(classes, results, strict=True)
            ]
            write_output(self._folder / "yolo" / "labels" / f"{stem}.txt", "".join(lines).encode())
        if "csv" in self._formats:
            self._lines += [
                _csv_values(image, self._names.names[index], result)
                for index, result in zip(classes, results, strict=True)
            ]
        if "label_studio" in self._formats:
            self._tasks.append(self._task(image, results, classes))
        return stem

    def write(self) -> None:
        """Write the files that cover all images."""
        if "coco" in self._formats:
            content = {
                "images": self._images,
                "categories": self._coco_names.to_categories(),
                "annotations": self._annotations,
            }
            write_output(self._folder / "coco.json", json.dumps(content).encode(), flush=True)
        if "yolo" in self._formats:
            write_output(
                self._folder / "yolo" / "classes.txt", "".join(f"{name}\n" for name in self._names.names).encode()
            )
        if "label_studio" in self._formats:
            write_output(self._folder / "label_studio.json", json.dumps(self._tasks).encode(), flush=True)
            configuration = labeling_configuration(self._names.names)
            write_output(self._folder / "label_studio.xml", configuration.encode())
        if "csv" in self._formats:
            text = io.StringIO(newline="")
            csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *self._lines])
            write_output(self._folder / "detections.csv", text.getvalue().encode(errors="backslashreplace"), flush=True)

    def _task(self, image: dict[str, Any], results: Sequence[dict], classes: Sequence[int]) -> dict[str, Any]:
        """Return a task of Label Studio with the detections as a prediction."""
        size = image["width"], image["height"]
        regions = [
            rectangle_region(result["bbox"], self._names.names[index], identifier=f"detection{number}", size=size)
            for number, (index, result) in enumerate(zip(classes, results, strict=True))
        ]
        proposed = prediction(regions, [result["score"] for result in results], model_version="detections")
        return {"data": task_data(self._storage_folder + image["file_name"]), "predictions": [proposed]}


class Crops:
    """Writer of crops of the drawn detections into a folder, crops/CLASS/STEM_N.jpg."""

    def __init__(self, folder: str, names: ClassNames):
        self._names = names
        self._folders = [Path(folder) / "crops" / name for name in folder_names(names.names)]

    def earlier(self) -> dict[str, list[str]]:
        """Return the crops that the folder has, by the stem of their image."""
        found: dict[str, list[str]] = defaultdict(list)
        for path in itertools.chain(*(crop_folder.glob("*_*.jpg") for crop_folder in self._folders)):
            found[path.stem.rpartition("_")[0]].append(str(path))
        return found

    def write(
        self, stem: str, pixels: np.ndarray, rows: DetectionRows, *, orientation: int = 1, earlier: Sequence[str] = ()
    ) -> None:
        """Write a crop per box of an image [h, w, 3] uint8 with every pixel that it touches; none outside the image.

        earlier: crops of an earlier run, which are removed.
        """
        for path in earlier:
            Path(path).unlink(missing_ok=True)
        classes = np.searchsorted(self._names.category_ids, rows.category_ids).tolist()
        for number, (box, index) in enumerate(zip(rows.boxes, classes, strict=True), start=1):
            crop = cropped(pixels, box)
            if crop.size:
                write_output(
                    self._folders[index] / f"{stem}_{number}.jpg",
                    encode_image(crop, "JPEG", quality=95, orientation=orientation),
                )


def cropped(pixels: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return every pixel of an image [h, w, 3] that a box [4] yxyx touches; none if it lies outside."""
    (top, left), (bottom, right) = (
        np.clip(corner, 0, pixels.shape[:2]).astype(int) for corner in (np.floor(box[:2]), np.ceil(box[2:]))
    )
    return np.ascontiguousarray(pixels[top:bottom, left:right])


def _yolo_line(index: int, result: dict, *, width: int, height: int, has_score: bool) -> str:
    x, y, box_width, box_height = result["bbox"]
    shares = (x + box_width / 2) / width, (y + box_height / 2) / height, box_width / width, box_height / height
    score = [f"{result['score']:g}"] if has_score else []
    return " ".join([str(index), *(f"{share:.7f}" for share in shares), *score]) + "\n"


def _csv_values(image: dict, class_name: str, result: dict) -> list:
    x, y, width, height = result["bbox"]
    file_name, class_name = (
        f"'{text}" if text.startswith(_FORMULA) else text for text in (image["file_name"], class_name)
    )
    return [
        file_name,
        image["width"],
        image["height"],
        class_name,
        result["category_id"],
        result["score"],
        x,
        y,
        round(x + width, 2),
        round(y + height, 2),
    ]
