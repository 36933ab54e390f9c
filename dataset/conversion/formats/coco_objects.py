"""Read one annotation of a COCO file; what tools leave out or write otherwise is derived and counted in notes."""

from collections import Counter
from typing import Any

import numpy as np

from dataset.conversion.annotations import AnnotatedObject, box_around, box_around_rotated
from dataset.conversion.segmentation import UnusableSegmentation, check_segmentation, validated_run_lengths
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.untrusted_values import finite_number, is_set, listed, number_of_text, shown, whole_number
from object_detection.coco.run_length_masks import decoded
from program_support.errors import InputError

Box = tuple[float, float, float, float]  # x, y, width, height


def read_object(
    entry: dict, category_id: int, *, known: frozenset[int], with_segmentation: bool, notes: Counter[str]
) -> AnnotatedObject:
    """Return the object of an annotation; `notes` counts what was derived.

    Raises:
        InputError: for an invalid one.
    """
    if category_id not in known:
        raise InputError(f"has category {shown(entry.get('category_id'))}; the categories are {listed(sorted(known))}")
    outline = _segmentation(entry)
    box = _box(entry, outline, notes)
    if with_segmentation and not outline:
        raise InputError("has no segmentation, which --include_masks needs")
    if is_set(entry.get("ignore"), "ignore"):
        notes["objects with ignore 1 are used like others, as in pycocotools: only iscrowd 1 is ignored"] += 1
    if any(isinstance(entry.get(name), str) for name in ("id", "image_id", "category_id", "iscrowd", "ignore", "area")):
        notes["annotations have numbers written as text"] += 1
    annotation_id, area = number_of_text(entry.get("id")), number_of_text(entry.get("area"))
    return AnnotatedObject(
        annotation_id=None if annotation_id is None or isinstance(annotation_id, str) else _annotation_id(entry["id"]),
        category_id=category_id,
        box_xywh=box,
        area=None if area in (None, "") else finite_number(area, "area"),
        is_crowd=is_set(entry.get("iscrowd"), "iscrowd"),
        is_difficult=is_set(entry.get("difficult"), "difficult"),
        segmentation=outline if with_segmentation else None,
    )


def _annotation_id(value: Any) -> int:
    return whole_number(number_of_text(value), "id")


def _segmentation(entry: dict) -> Any:
    """Return polygons or run lengths; VIA writes the only polygon without its list."""
    outline = entry.get("segmentation")
    if isinstance(outline, list) and outline and all(type(value) in (int, float) for value in outline):
        return [outline]
    return outline


def _box(entry: dict, outline: Any, notes: Counter[str]) -> Box:
    """Return the box: as it is, around a rotated one, or around the outline if it is missing or empty."""
    values = entry.get("bbox")
    if values is None or values == []:
        if not outline:
            raise InputError("has neither a bbox nor a segmentation")
        notes["objects without a bbox got the box around their outline"] += 1
        return _box_around_outline(outline)
    if not isinstance(values, list) or len(values) not in (4, 5):
        raise InputError(f"has bbox {shown(values)}, expected 4 numbers (x, y, width, height)")
    if any(isinstance(value, str) for value in values):
        notes["boxes have numbers written as text"] += 1
    numbers = [finite_number(number_of_text(value), "in its bbox") for value in values]
    if len(numbers) == 5:  # Detectron2's BoxMode.XYWHA_ABS
        x, y, width, height, degrees = numbers
        numbers, is_plain = [x - width / 2, y - height / 2, width, height], True
    else:
        degrees, is_plain = _degrees(entry), not outline or _is_rectangle(outline, numbers)
    box = (numbers[0], numbers[1], numbers[2], numbers[3])
    if degrees and is_plain:
        notes["rotated boxes became the boxes around them"] += 1
        return box_around_rotated(box, degrees)
    return box


def _degrees(entry: dict) -> float:
    """Return the rotation of a box, which CVAT writes as an attribute; 0 without one."""
    attributes = entry.get("attributes")
    if isinstance(attributes, list):
        pairs = [one for one in attributes if isinstance(one, dict) and isinstance(one.get("name"), str)]
        attributes = {one["name"]: one.get("value") for one in pairs}
    for place in (attributes if isinstance(attributes, dict) else {}, entry):
        for name in ("rotation", "angle"):
            if place.get(name) not in (None, ""):
                return finite_number(number_of_text(place[name]), name)
    return 0.0


def _is_rectangle(outline: Any, box: list[float]) -> bool:
    """Return whether an outline is the unrotated box itself, which says nothing about a rotation."""
    x, y, width, height = box
    corners = {(x, y), (x + width, y), (x + width, y + height), (x, y + height)}
    polygon = outline[0] if isinstance(outline, list) and len(outline) == 1 else None
    if not isinstance(polygon, list) or any(type(value) not in (int, float) for value in polygon):
        return False
    return {*zip(polygon[::2], polygon[1::2], strict=False)} <= corners


def _box_around_outline(outline: Any) -> Box:
    try:
        check_segmentation(outline)
        if isinstance(outline, list):
            left, top, right, bottom = np.array([_corners(polygon) for polygon in outline]).T
            sides = left.min(), top.min(), right.max() - left.min(), bottom.max() - top.min()
            return float(sides[0]), float(sides[1]), float(sides[2]), float(sides[3])
        height, width = (whole_number(side, "size", least=1) for side in outline["size"])
        if height * width > LARGEST_IMAGE_PIXELS:
            raise InputError(f"has a segmentation of {width}x{height} pixels; the limit is {LARGEST_IMAGE_PIXELS}")
        rows, columns = np.nonzero(decoded(validated_run_lengths(outline, (height, width))))
    except UnusableSegmentation as error:
        raise InputError(f"has no bbox, and {error}") from error
    if not len(rows):
        return 0.0, 0.0, 0.0, 0.0
    left, top = float(columns.min()), float(rows.min())
    return left, top, float(columns.max()) + 1 - left, float(rows.max()) + 1 - top


def _corners(polygon: list[float]) -> tuple[float, float, float, float]:
    x, y, width, height = box_around(polygon)
    return x, y, x + width, y + height
