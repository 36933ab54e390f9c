"""Read labelme's files, one JSON file per image, with points in pixels of the image after EXIF rotation.

Format: https://github.com/wkentaro/labelme/blob/main/labelme/_label_file.py; X-AnyLabeling adds shape types and
`difficult`.
"""

import base64
import math
import os
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    box_around,
    ellipse_outline,
    outline_of,
)
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import split_of_folders
from dataset.files.bounded_files import read_json
from dataset.files.file_kinds import is_conversion_output
from dataset.files.untrusted_values import error_context, is_set, number_of_text, shown, storable_text, whole_number
from program_support.errors import InputError

_WITHOUT_AREA = ("point", "points", "line", "linestrip")
_NO_CLASSES = ("__ignore__", "_background_")  # labelme's own conversions write them
_POINT_COUNTS = {  # of each shape
    "polygon": range(3, 1 << 31),
    "rectangle": (2, 4),
    "circle": (2,),
    "mask": (2,),
    "rotation": (4,),
    "oriented_rectangle": range(1, 1 << 31),
    "quadrilateral": (4,),
}


def read_labelme(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read a JSON file, or all JSON files in a folder tree, in which folders named train, val and test are splits.

    Shapes with the same label and `group_id` are one object, as in labelme's own conversion to COCO. Invalid files and
    shapes are skipped.
    """
    path, labels = Path(annotations), LabelCollector(source=annotations)
    files = FolderFiles(path if path.is_dir() else path.parent, (".json",))
    names = files.names if path.is_dir() else [path.name]
    for name in names:
        file = str(files.path(name))
        if path.is_dir() and is_conversion_output(Path(file)):
            continue
        labels.split = split_of_folders(name)
        labels.hasher.update(name.encode() + b"\0")
        with labels.skipping(file=file):
            content = read_json(file, hasher=labels.hasher)
            if path.is_dir() and not (isinstance(content, dict) and {"shapes", "imagePath"} & {*content}):
                labels.note("is not a labelme JSON file: ignored", file=file)
                continue
            image = _read_image(content, files, name, images, labels)
            _add_objects(content["shapes"], image, labels, file=file, with_masks=with_masks)
            labels.images.append(image)
    return labels.named_data_set()


def _read_image(
    content: Any, files: FolderFiles, name: str, images: ImageFolder, labels: LabelCollector
) -> AnnotatedImage:
    if not isinstance(content, dict) or not isinstance(content.get("shapes"), list):
        raise InputError("is not a labelme JSON file: has no list of shapes")
    height, width = (number_of_text(content.get(side)) for side in ("imageHeight", "imageWidth"))
    size = None
    if height and width:
        size = whole_number(height, "imageHeight", least=1), whole_number(width, "imageWidth", least=1)
    path, place, split = content.get("imagePath"), PurePosixPath(name), split_of_folders(name)
    # Its folders are relative to the JSON file or of another machine
    last = PurePosixPath(storable_text(path, "imagePath").replace("\\", "/")).name if path else ""
    with error_context("its image"):
        inner = str(place.with_name(last)) if last else ""
        file_name, note = images.of_label_file(str(place.with_suffix("")), inner, split=split)
    if note:
        labels.note(note, file=str(files.path(name)))
    if content.get("imageData") and not os.path.isfile(images.path(file_name)):
        file_name = _embedded_image(content["imageData"], files.path(name), images)
    return AnnotatedImage(file_name=file_name, size=size, is_upright=True, split=split)


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


def _add_objects(shapes: list, image: AnnotatedImage, labels: LabelCollector, *, file: str, with_masks: bool) -> None:
    outlines: dict[tuple, list[list[float]]] = {}
    difficult = set()
    for index, shape in enumerate(shapes):
        with labels.skipping(f"shape {index}", file=file, image=image):
            if not isinstance(shape, dict):
                raise InputError(f"is {shown(shape)}, expected an object")
            kind = storable_text(shape.get("shape_type") or "polygon", "shape_type")
            label = storable_text(shape.get("label"), "label").strip()
            if kind in _WITHOUT_AREA or label in _NO_CLASSES:
                reason = f"a {kind} encloses no area" if kind in _WITHOUT_AREA else f"label {label} is no class"
                labels.note(f"{reason}: ignored", file=file, kind="box")
                continue
            if kind in ("rotation", "oriented_rectangle"):
                labels.notes[ROTATED] += 1
            category_id = labels.id_of(label)
            outline = _outline(kind, outline_of(shape.get("points")))
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


def _outline(kind: str, points: list[float]) -> list[float]:
    """Return the outline of the shape as x, y, x, y, .."""
    if kind not in _POINT_COUNTS:
        raise InputError(f"has shape_type {shown(kind)}, expected polygon, rectangle, circle, mask, point or line")
    expected, count = _POINT_COUNTS[kind], len(points) // 2
    if count not in expected:
        numbers = "at least 3" if isinstance(expected, range) else " or ".join(map(str, expected))
        raise InputError(f"is a {kind} of {count} points, expected {numbers}")
    if kind == "circle":
        x, y, *rim = points
        radius = math.dist((x, y), rim)
        return ellipse_outline((x, y), (radius, radius))
    if kind == "mask":  # inclusive of its last row and column
        left, top, right, bottom = points
        return [left, top, right + 1, bottom + 1]
    return points
