"""Read labelme's files, one JSON file per image, with points in pixels of the image after EXIF rotation.

Format: https://github.com/wkentaro/labelme/blob/main/labelme/_label_file.py.
"""

import hashlib
import math
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, Finding, box_around
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import split_of_each, split_of_folders
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.bounded_files import read_json
from dataset.files.file_kinds import is_conversion_output
from dataset.files.image_files import IMAGE_SUFFIXES
from dataset.files.untrusted_values import error_context, finite_number, shown, storable_text, whole_number
from program_support.errors import InputError

_CIRCLE_CORNERS = 64
_WITHOUT_AREA = ("point", "points", "line", "linestrip")


def read_labelme(annotations: str, images: ImageFolder, *, with_masks: bool) -> dict[str, AnnotatedDataSet]:
    """Read a JSON file, or all JSON files in a folder tree.

    Splits are folders named train, val and test; without them the split "" has all files. Shapes with the same label
    and `group_id` are one object, as in labelme's own conversion to COCO. Raises InputError, with file, shape and
    value, for an invalid file.
    """
    path = Path(annotations)
    files = FolderFiles(path if path.is_dir() else path.parent, (".json",))
    names = (
        [name for name in files.names if not is_conversion_output(files.path(name))] if path.is_dir() else [path.name]
    )
    if not names:
        raise InputError(f"{annotations}: contains no JSON file")
    split_of = split_of_each(names, [*map(split_of_folders, names)], where=annotations)
    classes, hasher = ClassNumbering(), hashlib.sha256()
    parts: dict[str, list[AnnotatedImage]] = {}
    noted: list[Finding] = []
    for name, split in zip(names, split_of, strict=True):
        hasher.update(name.encode() + b"\0")
        content = read_json(str(files.path(name)), hasher=hasher)
        with error_context(f"{files.path(name)}:"):
            image, passed_over = _read_image(content, name, images, classes=classes, with_masks=with_masks)
        parts.setdefault(split, []).append(image)
        noted += [
            Finding(kind="box", file=str(files.path(name)), reason=f"a {kind} encloses no area: ignored")
            for kind in passed_over
        ]
    class_names = classes.class_names(annotations)
    return {
        split: AnnotatedDataSet(
            source=annotations,
            images=found,
            class_names=class_names,
            fingerprint=hasher.hexdigest(),
            listed_boxes=sum(len(image.objects) for image in found),
            noted=noted if split == split_of[0] else [],
        )
        for split, found in parts.items()
    }


def _read_image(
    content: Any, name: str, images: ImageFolder, *, classes: ClassNumbering, with_masks: bool
) -> tuple[AnnotatedImage, list[str]]:
    """Return the image and the kinds of the shapes that are not objects."""
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise InputError("is not a labelme JSON file: has no list of shapes")
    sides = content.get("imageHeight"), content.get("imageWidth")
    size = None
    if sides != (None, None):
        size = whole_number(sides[0], "imageHeight", least=1), whole_number(sides[1], "imageWidth", least=1)
    image = AnnotatedImage(image_id=0, file_name=_image_name(content, name, images), size=size, is_upright=True)
    outlines: dict[tuple, list[list[float]]] = {}
    passed_over, boxes_only = [], set()
    for index, shape in enumerate(content["shapes"]):
        with error_context(f"shape {index}"):
            if not isinstance(shape, dict):
                raise InputError(f"is {shown(shape)}, expected an object")
            kind = storable_text(shape.get("shape_type", "polygon"), "shape_type")
            if kind in _WITHOUT_AREA:
                passed_over.append(kind)
                continue
            category_id = classes.id_of(storable_text(shape.get("label"), "label"))
            group = shape.get("group_id")
            key = (
                (category_id, "one", index)
                if group is None
                else (category_id, "group", whole_number(group, "group_id"))
            )
            outlines.setdefault(key, []).append(_outline(kind, _points(shape)))
            if kind in ("rectangle", "mask"):
                boxes_only.add(key)
            if with_masks and kind == "mask":
                raise InputError("is a pixel mask, which --include_masks does not support; expected polygons")
    if with_masks and boxes_only:
        raise InputError("has rectangles, and --include_masks needs outlines")
    for (category_id, *_), polygons in outlines.items():
        image.objects.append(
            AnnotatedObject(
                annotation_id=None,
                category_id=category_id,
                box_xywh=box_around([*chain(*polygons)]),
                segmentation=polygons if with_masks else None,
            )
        )
    return image, passed_over


def _image_name(content: dict, name: str, images: ImageFolder) -> str:
    """Return the file name in imagePath, else the image with the name of the JSON file.

    The folders in imagePath are relative to the JSON file or belong to another machine.
    """
    path = content.get("imagePath")
    last = PurePosixPath(storable_text(path, "imagePath").replace("\\", "/")).name if path else ""
    place = PurePosixPath(name)
    if not last:
        called_alike = (place.stem + suffix for suffix in sorted(IMAGE_SUFFIXES))
        last = next((other for other in called_alike if images.find(other)), f"{place.stem}.jpg")
    return images.named(str(place.with_name(last)), where="its image", split=split_of_folders(name))


def _points(shape: dict) -> list[list[float]]:
    points = shape.get("points")
    if not isinstance(points, list) or not points:
        raise InputError(f"has points {shown(points)}, expected a list")
    for point in points:
        if not isinstance(point, list) or len(point) != 2:
            raise InputError(f"has the point {shown(point)}, expected x and y")
    found = [[finite_number(value, "in its points") for value in point] for point in points]
    if (largest := max(map(abs, chain(*found)))) > LARGEST_COORDINATE:
        raise InputError(f"has {largest:g} in its points, expected at most {LARGEST_COORDINATE:g}")
    return found


def _outline(kind: str, points: list[list[float]]) -> list[float]:
    """Return the outline of the shape as x, y, x, y, .."""
    expected = {"rectangle": (2, 4), "circle": (2,), "mask": (2,)}.get(kind)
    if (expected and len(points) not in expected) or (kind == "polygon" and len(points) < 3):
        raise InputError(
            f"is a {kind} of {len(points)} points, expected {' or '.join(map(str, expected or ('at least 3',)))}"
        )
    if kind == "circle":
        (x, y), rim = points
        radius = math.dist(points[0], rim)
        angles = [2 * math.pi * corner / _CIRCLE_CORNERS for corner in range(_CIRCLE_CORNERS)]
        return [value for angle in angles for value in (x + radius * math.cos(angle), y + radius * math.sin(angle))]
    if kind == "mask":  # inclusive of its last row and column
        (left, top), (right, bottom) = points
        return [left, top, right + 1, bottom + 1]
    if kind not in ("polygon", "rectangle", "oriented_rectangle"):
        raise InputError(f"has shape_type {shown(kind)}, expected polygon, rectangle, circle, mask, point or line")
    return [value for point in points for value in point]
