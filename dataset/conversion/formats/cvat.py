"""Read "CVAT for images 1.1": one XML file with an element for each image and, inside it, for each shape.

Format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat. Coordinates are pixels of the image.
"""

import hashlib
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import numpy as np

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, Finding, box_around
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import split_of_each, split_of_word
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.untrusted_values import error_context, number_in_text, shown
from dataset.files.xml_files import read_xml
from object_detection.coco.run_length_masks import run_lengths
from program_support.errors import InputError

_WITHOUT_AREA = ("polyline", "points", "tag", "skeleton", "cuboid")
_ELLIPSE_CORNERS = 64


def read_cvat(path: str, images: ImageFolder, *, with_masks: bool) -> dict[str, AnnotatedDataSet]:
    """Read a file by its subsets train, val and test, or as the split "" if it has none.

    Classes are the labels of the task and of the shapes. Raises InputError, with file, image and value, for an invalid
    file.
    """
    root, content = read_xml(path, root_tag="annotations", what="a CVAT xml")
    if root.find("track") is not None:
        raise InputError(f"{path}: is 'CVAT for video 1.1', expected 'CVAT for images 1.1': export the task as that")
    classes = ClassNumbering()
    with error_context(f"{path}: a label of the task"):
        for node in root.iterfind("meta//labels/label/name"):
            classes.id_of(node.text or "")
    nodes = root.findall("image")
    subsets = [split_of_word(node.get("subset", "")) for node in nodes]
    split_of = split_of_each([node.get("name", "") for node in nodes], subsets, where=path)
    parts: dict[str, list[AnnotatedImage]] = {}
    skipped: list[Finding] = []
    for node, split in zip(nodes, split_of, strict=True):
        image = _read_image(node, images, path=path, split=split, classes=classes, with_masks=with_masks)
        parts.setdefault(split, []).append(image)
        skipped += [
            Finding(kind="box", file=image.file_name, reason=f"a {tag} of {path} encloses no area: ignored")
            for tag in _WITHOUT_AREA
            for _ in node.iterfind(tag)
        ]
    if not any(image.objects for found in parts.values() for image in found):
        raise InputError(f"{path}: no boxes in the {len(nodes)} images that it lists")
    class_names = classes.class_names(path)
    return {
        split: AnnotatedDataSet(
            source=path,
            images=found,
            class_names=class_names,
            fingerprint=hashlib.sha256(content).hexdigest(),
            listed_boxes=sum(len(image.objects) for image in found),
            noted=skipped if split == split_of[0] else [],
        )
        for split, found in parts.items()
    }


def _read_image(
    node: ElementTree.Element, images: ImageFolder, *, path: str, split: str, classes: ClassNumbering, with_masks: bool
) -> AnnotatedImage:
    where = f"{path}: image {shown(node.get('name'))}"
    name = images.named(node.get("name"), where=where, split=split or None)
    height, width = (_number(node, side, where=where) for side in ("height", "width"))
    if min(height, width) < 1 or height % 1 or width % 1:
        raise InputError(f"{where} is of {width:g} x {height:g}, expected whole numbers of pixels")
    size = int(height), int(width)
    image = AnnotatedImage(image_id=0, file_name=name, size=size)
    for index, shape in enumerate(node):
        if read := _SHAPES.get(shape.tag):
            place = f"{where}: {shape.tag} {index}"
            with error_context(place):
                category_id = classes.id_of(shape.get("label", ""))
            box, outline = read(shape, place)
            image.objects.append(
                AnnotatedObject(
                    annotation_id=None,
                    category_id=category_id,
                    box_xywh=box,
                    segmentation=_segmentation(shape, outline, size, place) if with_masks else None,
                )
            )
    return image


def _number(node: ElementTree.Element, name: str, *, where: str) -> float:
    return _bounded(node.get(name, ""), where=f"{where}: {name}")


def _bounded(text: str, *, where: str) -> float:
    number = number_in_text(text, where=where)
    if abs(number) > LARGEST_COORDINATE:
        raise InputError(f"{where} is {number:g}, expected at most {LARGEST_COORDINATE:g}")
    return number


def _segmentation(
    node: ElementTree.Element, outline: list[float] | None, size: tuple[int, int], where: str
) -> list | dict:
    if node.tag == "mask":
        return _mask_run_lengths(node, size, where)
    if outline is None:
        raise InputError(f"{where} is a box, and --include_masks needs outlines")
    return [outline]


def _box(node: ElementTree.Element, where: str) -> tuple[tuple, None]:
    left, top, right, bottom = (_number(node, side, where=where) for side in ("xtl", "ytl", "xbr", "ybr"))
    turn = _turn(node, where)
    if not turn:
        return (left, top, right - left, bottom - top), None
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return box_around(_rotated(corners, center=((left + right) / 2, (top + bottom) / 2), turn=turn)), None


def _polygon(node: ElementTree.Element, where: str) -> tuple[tuple, list]:
    outline = []
    for point in node.get("points", "").split(";"):
        pair = point.split(",")
        if len(pair) != 2:
            raise InputError(f"{where} has the point {shown(point)}, expected x,y")
        outline += [_bounded(text, where=f"{where}: a point") for text in pair]
    return box_around(outline), outline


def _ellipse(node: ElementTree.Element, where: str) -> tuple[tuple, list]:
    x, y, x_radius, y_radius = (_number(node, name, where=where) for name in ("cx", "cy", "rx", "ry"))
    turn = _turn(node, where)
    across = math.hypot(x_radius * math.cos(turn), y_radius * math.sin(turn))
    down = math.hypot(x_radius * math.sin(turn), y_radius * math.cos(turn))
    angles = np.arange(_ELLIPSE_CORNERS) * (2 * math.pi / _ELLIPSE_CORNERS)
    corners = np.stack([x + x_radius * np.cos(angles), y + y_radius * np.sin(angles)], axis=-1).tolist()
    return (x - across, y - down, 2 * across, 2 * down), _rotated(corners, center=(x, y), turn=turn)


def _mask(node: ElementTree.Element, where: str) -> tuple[tuple, None]:
    return tuple(_number(node, name, where=where) for name in ("left", "top", "width", "height")), None


def _mask_run_lengths(node: ElementTree.Element, size: tuple[int, int], where: str) -> dict:
    """Return run lengths of the full image from row-wise run lengths of a rectangle, which begin with zeros."""
    left, top, width, height = _mask(node, where)[0]
    inside = min(left, top) >= 0 and min(width, height) >= 1 and left + width <= size[1] and top + height <= size[0]
    if not inside or any(side % 1 for side in (left, top, width, height)) or size[0] * size[1] > LARGEST_IMAGE_PIXELS:
        raise InputError(
            f"{where} covers x {left:g} to {left + width:g}, y {top:g} to {top + height:g}, expected whole pixels "
            f"inside the image of {size[1]}x{size[0]}, of at most {LARGEST_IMAGE_PIXELS} pixels"
        )
    runs = [_bounded(text, where=f"{where}: a run length") for text in node.get("rle", "").split(",")]
    if min(runs) < 0 or any(run % 1 for run in runs) or sum(runs) != width * height:
        raise InputError(
            f"{where} has run lengths {shown(runs)}, expected whole numbers with the sum {width * height:g}"
        )
    values = np.arange(len(runs), dtype=np.uint8) & 1
    pixels = np.zeros(size, np.uint8)
    pixels[int(top) : int(top + height), int(left) : int(left + width)] = np.repeat(
        values, np.array(runs, np.int64)
    ).reshape(int(height), int(width))
    return run_lengths(pixels)


_SHAPES = {"box": _box, "polygon": _polygon, "ellipse": _ellipse, "mask": _mask}


def _turn(node: ElementTree.Element, where: str) -> float:
    """Return the rotation in radians, clockwise in the image."""
    return math.radians(_number(node, "rotation", where=where)) if node.get("rotation") else 0.0


def _rotated(corners: list, *, center: tuple[float, float], turn: float) -> list[float]:
    """Return the corners, rotated around the center, as x, y, x, y, .."""

    def flat() -> Iterator[float]:
        for x, y in corners:
            right, down = x - center[0], y - center[1]
            yield center[0] + right * math.cos(turn) - down * math.sin(turn)
            yield center[1] + right * math.sin(turn) + down * math.cos(turn)

    return [*flat()]
