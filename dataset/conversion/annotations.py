"""What the annotation readers hand over, and how objects are fitted to the image that was really found."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from dataset.class_names import ClassNames
from dataset.files.untrusted_values import shown, storable_text
from program_support.errors import InputError

LEAST_SHARE, MOST_SHARE = -1.0, 2.0  # a coordinate in shares of the image's side beyond these is none: pixels, most likely


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedObject:
    """One object as its file describes it: nothing is clipped yet. The box is in pixels, or `in_shares` of its image."""

    annotation_id: int | None
    category_id: int
    box_xywh: tuple[float, float, float, float]
    area: float | None = None
    is_crowd: bool = False
    is_difficult: bool = False
    segmentation: Any = None


@dataclass(kw_only=True, slots=True)
class AnnotatedImage:
    """One image as its file describes it; `size` is (height, width) or None where the file does not say.

    `in_shares`: its boxes are in shares of width and height, and become pixels when the file has told its size. `refused`: how
    many objects its reader left out because they cannot be used.
    """

    image_id: int
    file_name: str
    size: tuple[int, int] | None
    objects: list[AnnotatedObject] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)
    in_shares: bool = False
    refused: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something fixed, skipped or worth knowing; `kind` is image or box."""

    kind: str
    file: str
    reason: str
    image_id: int | None = None
    annotation_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class AnnotatedDataSet:
    """Images in the order of their file, with their objects; a list, or a sequence that has them on the disk.

    `fingerprint` changes whenever anything that was read changes. `skipped` and `noted` are what the reader itself left
    out (boxes of unknown images) or found odd.
    """

    source: str
    images: Sequence[AnnotatedImage]
    class_names: ClassNames | None
    fingerprint: str
    listed_boxes: int
    skipped: list[Finding] = field(default_factory=list)
    noted: list[Finding] = field(default_factory=list)


def checked_file_name(name: Any, *, where: str) -> str:
    """`name` if it is a file below the image folder; InputError that starts with `where` otherwise."""
    try:
        if not storable_text(name, "file name"):
            raise InputError("has file name ''")
    except InputError as error:
        raise InputError(f"{where} {error}: expected a name relative to the image folder") from error
    depth = 0
    for part in PurePath(name).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/":
            raise InputError(f"{where} has file name {shown(name)}, which is outside the image folder")
    return name


def box_around(outline: Sequence[float]) -> tuple[float, float, float, float]:
    """x, y, width, height of what encloses the points x, y, x, y, .. of an outline."""
    left, top = min(outline[::2]), min(outline[1::2])
    return left, top, max(outline[::2]) - left, max(outline[1::2]) - top


def in_pixels(annotation: AnnotatedObject, size: tuple[int, int]) -> AnnotatedObject:
    """An object whose box was in shares of an image of (height, width) pixels."""
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    return replace(annotation, box_xywh=(x * width, y * height, box_width * width, box_height * height))


def in_hundredths(annotation: AnnotatedObject, size: tuple[int, int]) -> AnnotatedObject:
    """As `in_pixels`, polygons too, in whole hundredths of a pixel: what was pixels before a file had it in shares.

    Shares of 6 digits, as most tools write them, tell the hundredths of a image of up to 6,000 pixels a side.
    """
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    left, right = round(x * width, 2), round((x + box_width) * width, 2)
    top, bottom = round(y * height, 2), round((y + box_height) * height, 2)
    polygons = annotation.segmentation and [
        [round(share * (height if place % 2 else width), 2) for place, share in enumerate(polygon)]
        for polygon in annotation.segmentation]
    return replace(annotation, box_xywh=(left, top, round(right - left, 2), round(bottom - top, 2)), segmentation=polygons)


def fitted_object(annotation: AnnotatedObject, size: tuple[int, int]) -> tuple[AnnotatedObject | None, str | None]:
    """An object clipped to an image of (height, width) pixels, and what was done about it.

    Returns (object, None) where it stays as it is, (object, reason) where it was changed and (None, reason) where no
    area is left. An area that is missing becomes that of the box.
    """
    height, width = size
    x, y, box_width, box_height = annotation.box_xywh
    if box_width <= 0 or box_height <= 0:
        return None, f"box {_shown(annotation.box_xywh)} (x, y, width, height) has no area"
    left, top = max(x, 0.0), max(y, 0.0)
    right, bottom = min(x + box_width, float(width)), min(y + box_height, float(height))
    if right <= left or bottom <= top:
        return None, f"box {_shown(annotation.box_xywh)} (x, y, width, height) lies outside the {width}x{height} image"
    reasons = []
    box = annotation.box_xywh
    if not math.isclose((right - left) * (bottom - top), box_width * box_height, rel_tol=1e-9):
        box = (left, top, right - left, bottom - top)
        reasons.append(f"box {_shown(annotation.box_xywh)} clipped to {_shown(box)} of the {width}x{height} image")
    area = box[2] * box[3]
    if annotation.area is not None and annotation.area > 0 and (reasons or annotation.area <= width * height):
        area = min(annotation.area, area) if reasons else annotation.area  # what was cut off has no area in the image
    elif annotation.area is not None:
        reasons.append(f"area {annotation.area:g} replaced by that of the box, {area:g}")
    fitted = AnnotatedObject(
        annotation_id=annotation.annotation_id, category_id=annotation.category_id, box_xywh=box, area=area,
        is_crowd=annotation.is_crowd, is_difficult=annotation.is_difficult, segmentation=annotation.segmentation)
    return fitted, "; ".join(reasons) or None


def _shown(numbers: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{number:g}" for number in numbers) + "]"
