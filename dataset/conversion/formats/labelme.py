"""Read labelme's files, one JSON file per image, with points in pixels of the image after EXIF rotation.

Format: https://github.com/wkentaro/labelme/blob/main/labelme/_label_file.py; X-AnyLabeling adds shape types and
`difficult`.
"""

import base64
import hashlib
import math
import os
from collections import defaultdict
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    SplitContent,
    box_around,
    ellipse_outline,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import split_of_each, split_of_folders
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.bounded_files import read_json
from dataset.files.file_kinds import is_conversion_output
from dataset.files.untrusted_values import (
    error_context,
    finite_number,
    is_set,
    number_of_text,
    shown,
    storable_text,
    whole_number,
)
from program_support.errors import InputError

_WITHOUT_AREA = ("point", "points", "line", "linestrip")
_OUTLINES = ("polygon", "rectangle", "oriented_rectangle", "rotation", "quadrilateral")
_POINT_COUNTS = {"rectangle": (2, 4), "circle": (2,), "mask": (2,), "rotation": (4,), "quadrilateral": (4,)}
_NO_CLASSES = ("__ignore__", "_background_")  # labelme's own conversions write them


def read_labelme(annotations: str, images: ImageFolder, *, with_masks: bool) -> dict[str, AnnotatedDataSet]:
    """Read a JSON file, or all JSON files in a folder tree.

    Splits are folders named train, val and test; without them the split "" has all files. Shapes with the same label
    and `group_id` are one object, as in labelme's own conversion to COCO. Invalid files and shapes are skipped.
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
    contents: defaultdict[str, SplitContent] = defaultdict(SplitContent)
    for name, split in zip(names, split_of, strict=True):
        content, file = contents[split], str(files.path(name))
        hasher.update(name.encode() + b"\0")
        with content.skipping(kind="image", file=file):
            shapes = read_json(file, hasher=hasher)
            if path.is_dir() and not (isinstance(shapes, dict) and {"shapes", "imagePath"} & {*shapes}):
                content.note(file, "is not a labelme JSON file: ignored")
                continue
            image = _read_image(shapes, files, name, images, content)
            _add_objects(shapes["shapes"], image, content, file=file, classes=classes, with_masks=with_masks)
            content.images.append(image)
    class_names = classes.class_names(annotations, *contents.values())
    return {
        split: content.data_set(source=annotations, class_names=class_names, fingerprint=hasher.hexdigest())
        for split, content in contents.items()
    }


def _read_image(
    content: Any, files: FolderFiles, name: str, images: ImageFolder, split_content: SplitContent
) -> AnnotatedImage:
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise InputError("is not a labelme JSON file: has no list of shapes")
    sides = [number_of_text(content.get(side)) for side in ("imageHeight", "imageWidth")]
    size = None
    if all(sides):
        size = whole_number(sides[0], "imageHeight", least=1), whole_number(sides[1], "imageWidth", least=1)
    path, place = content.get("imagePath"), PurePosixPath(name)
    last = PurePosixPath(storable_text(path, "imagePath").replace("\\", "/")).name if path else ""
    inner = (
        str(place.with_name(last)) if last else ""
    )  # its folders are relative to the JSON file or of another machine
    with error_context("its image"):
        file_name, note = images.of_label_file(str(place.with_suffix("")), inner, split=split_of_folders(name))
    if note:
        split_content.note(str(files.path(name)), note)
    if content.get("imageData") and not os.path.isfile(images.path(file_name)):
        file_name = _embedded_image(content["imageData"], files.path(name), images)
    return AnnotatedImage(file_name=file_name, size=size, is_upright=True)


def _embedded_image(encoded: Any, file: Path, images: ImageFolder) -> str:
    """Return the name of the JSON file, of which `open_image_file` reads `imageData`."""
    try:
        base64.b64decode(encoded)
    except (TypeError, ValueError) as error:
        raise InputError("has imageData that is not base64") from error
    name = os.path.relpath(file, images.folder)
    if name.startswith(".."):
        raise InputError(f"has its image only as imageData: expected the JSON file in --images={images.folder}")
    return name


def _add_objects(
    shapes: list, image: AnnotatedImage, content: SplitContent, *, file: str, classes: ClassNumbering, with_masks: bool
) -> None:
    outlines: dict[tuple, list[list[float]]] = {}
    difficult = set()
    for index, shape in enumerate(shapes):
        with content.skipping(file=file, image=image), error_context(f"shape {index}"):
            if not isinstance(shape, dict):
                raise InputError(f"is {shown(shape)}, expected an object")
            kind = storable_text(shape.get("shape_type") or "polygon", "shape_type")
            label = storable_text(shape.get("label"), "label").strip()
            if kind in _WITHOUT_AREA or label in _NO_CLASSES:
                reason = f"a {kind} encloses no area" if kind in _WITHOUT_AREA else f"label {label} is no class"
                content.note(file, f"{reason}: ignored", kind="box")
                continue
            if kind in ("rotation", "oriented_rectangle"):
                content.notes["rotated boxes became the boxes around them"] += 1
            category_id = classes.id_of(label)
            outline = _outline(kind, _points(shape))
            if with_masks and kind in ("rectangle", "mask"):
                raise InputError(f"is a {kind}, and --include_masks needs outlines: expected polygons")
            group = number_of_text(shape.get("group_id"))
            is_single = group is None or group == ""
            key = (category_id, is_single, index if is_single else whole_number(group, "group_id"))
            if is_set(shape.get("difficult"), "difficult"):
                difficult.add(key)
            outlines.setdefault(key, []).append(outline)
    for key, polygons in outlines.items():
        image.objects.append(
            AnnotatedObject(
                category_id=key[0],
                box_xywh=box_around([*chain(*polygons)]),
                is_difficult=key in difficult,
                segmentation=polygons if with_masks else None,
            )
        )


def _points(shape: dict) -> list[list[float]]:
    points = shape.get("points")
    if not isinstance(points, list) or not points:
        raise InputError(f"has points {shown(points)}, expected a list")
    for point in points:
        if not isinstance(point, list) or len(point) != 2:
            raise InputError(f"has the point {shown(point)}, expected x and y")
    numbers = [[finite_number(number_of_text(value), "in its points") for value in point] for point in points]
    if (largest := max(map(abs, chain(*numbers)))) > LARGEST_COORDINATE:
        raise InputError(f"has {largest:g} in its points, expected at most {LARGEST_COORDINATE:g}")
    return numbers


def _outline(kind: str, points: list[list[float]]) -> list[float]:
    """Return the outline of the shape as x, y, x, y, .."""
    expected = _POINT_COUNTS.get(kind)
    if (expected and len(points) not in expected) or (kind == "polygon" and len(points) < 3):
        raise InputError(
            f"is a {kind} of {len(points)} points, expected {' or '.join(map(str, expected or ('at least 3',)))}"
        )
    if kind == "circle":
        (x, y), rim = points
        radius = math.dist((x, y), rim)
        return ellipse_outline((x, y), (radius, radius))
    if kind == "mask":  # inclusive of its last row and column
        (left, top), (right, bottom) = points
        return [left, top, right + 1, bottom + 1]
    if kind not in _OUTLINES:
        raise InputError(f"has shape_type {shown(kind)}, expected polygon, rectangle, circle, mask, point or line")
    return [value for point in points for value in point]
