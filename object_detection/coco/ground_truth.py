"""Ground truth of the COCO metrics, read from COCO's JSON or its dictionary and validated once, when loaded."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from program_support.errors import InputError

Annotation = dict[str, Any]  # an object with COCO's keys


@dataclass(frozen=True, kw_only=True)
class GroundTruth:
    """Images, categories and annotations to evaluate against."""

    source: str  # where it came from, for messages
    image_sizes: dict[int, tuple[int, int] | None]  # image id -> (height, width) where known
    categories: dict[int, str]  # category id -> name, ascending
    annotations: tuple[Annotation, ...]  # COCO's, with the ids 1, 2, ... (see `_checked_annotation`)
    file_names: dict[int, str] = field(default_factory=dict)  # image id -> file name where known


def read_ground_truth(path: str | Path) -> GroundTruth:
    """Read a COCO annotation file (`instances_*.json`).

    Raises:
        InputError: with the name of the file, if it cannot be read or is not a COCO annotation file.
    """
    try:
        dataset = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text, perhaps of a Windows code page; save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    return ground_truth_from_dataset(dataset, source=str(path))


def ground_truth_from_dataset(dataset: Mapping[str, Any], *, source: str) -> GroundTruth:
    """Check and index a COCO dictionary of `images`, `annotations` and `categories`; it is not changed.

    Raises:
        InputError: with `source` and the id, if it is invalid.
    """
    images, annotations, categories = (
        _list_of(dataset, key, source=source) for key in ("images", "annotations", "categories")
    )
    image_sizes = {}
    for image in images:
        image_id = _integer(image, "id", where=f"{source}: an image")
        if image_id in image_sizes:
            raise InputError(f"{source}: image id {image_id} occurs twice")
        known = "height" in image and "width" in image
        image_sizes[image_id] = (image["height"], image["width"]) if known else None
    names = {}
    for category in categories:
        category_id = _integer(category, "id", where=f"{source}: a category")
        names[category_id] = str(category.get("name", category_id))
    checked = tuple(
        _checked_annotation(annotation, number=number, categories=names, source=source)
        for number, annotation in enumerate(annotations, start=1)
    )
    return GroundTruth(
        source=source,
        image_sizes=image_sizes,
        categories=dict(sorted(names.items())),
        annotations=checked,
        file_names={image["id"]: image["file_name"] for image in images if isinstance(image.get("file_name"), str)},
    )


def _list_of(dataset: Mapping[str, Any], key: str, *, source: str) -> list[Mapping[str, Any]]:
    """Return dataset[key]; raise InputError if it is not a list of dictionaries."""
    entries = dataset.get(key) if isinstance(dataset, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(item, Mapping) for item in entries):
        raise InputError(
            f"{source}: no list {key!r} of dictionaries; expected a COCO file with images, annotations and "
            "categories (instances_*.json)"
        )
    return entries


def _integer(item: Mapping[str, Any], key: str, *, where: str) -> int:
    """Return item[key]; raise InputError, beginning with `where`, if it is not an integer."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where} has {key} {value!r}; expected an integer")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _checked_annotation(
    annotation: Mapping[str, Any], *, number: int, categories: Mapping[int, str], source: str
) -> Annotation:
    """Return a copy with the keys that files tend to leave out, under a new id.

    pycocotools treats a match with annotation 0 as no match, and two annotations with the same id as one. It also
    writes into its input, hence the copy.
    """
    where = f"{source}: annotation {annotation.get('id')!r} of image {annotation.get('image_id')!r}"
    _integer(annotation, "image_id", where=where)
    category_id = _integer(annotation, "category_id", where=where)
    if category_id not in categories:
        raise InputError(f"{where} has category_id {category_id}; expected one of {sorted(categories)}")
    box_xywh = annotation.get("bbox")
    if not isinstance(box_xywh, list | tuple) or len(box_xywh) != 4 or not all(map(_is_number, box_xywh)):
        raise InputError(f"{where} has bbox {box_xywh!r}; expected four finite numbers x, y, width, height")
    area = annotation.get("area", box_xywh[2] * box_xywh[3])
    if not _is_number(area):
        raise InputError(f"{where} has area {area!r}; expected a finite number")
    return {**annotation, "id": number, "area": area, "iscrowd": int(annotation.get("iscrowd") or 0)}
