"""Read "CVAT for images 1.1", one XML file with an element for each image and each shape, and "CVAT for video 1.1".

Format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat. Coordinates are pixels of the image.
"""

import hashlib
import math
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

import numpy as np

from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    SplitContent,
    box_around,
    box_around_rotated,
    ellipse_outline,
    size_of_texts,
)
from dataset.conversion.class_numbering import ClassNumbering
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.cvat_frames import name_frames
from dataset.conversion.formats.cvat_tracks import frames_of_tracks
from dataset.conversion.named_splits import split_of_each, split_of_word
from dataset.conversion.segmentation import LARGEST_COORDINATE
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.untrusted_values import error_context, number_in_text, shown
from dataset.files.xml_files import read_xml
from object_detection.coco.run_length_masks import run_lengths
from program_support.errors import InputError

_WITHOUT_AREA = ("polyline", "points", "tag", "skeleton", "cuboid")


def read_cvat(path: str, images: ImageFolder, *, with_masks: bool) -> dict[str, AnnotatedDataSet]:
    """Read a file by its subsets train, val and test, or as the split "" if it has none.

    Tracks of a video are read as shapes of their frames, for frames that exist as image files. Classes are the labels
    of the task and of the shapes. Invalid images and shapes are skipped.

    Raises:
        InputError: for a file without boxes.
    """
    root, file = read_xml(path, root_tag="annotations", what="a CVAT xml")
    classes = ClassNumbering()
    with error_context(f"{path}: a label of the task"):
        for node in root.iterfind("meta//labels/label/name"):
            classes.id_of(node.text or "")
    nodes = root.findall("image")
    tracks = SplitContent()
    if root.find("track") is not None:
        nodes += frames_of_tracks(root, images, path=path, content=tracks)
    else:
        name_frames(root, nodes, images, path=path)
    subsets = [split_of_word(node.get("subset", "")) for node in nodes]
    split_of = split_of_each([node.get("name", "") for node in nodes], subsets, where=path)
    contents = defaultdict(SplitContent, {split: tracks for split in split_of[:1]})
    for node, split in zip(nodes, split_of, strict=True):
        content = contents[split]
        where = f"image {shown(node.get('name'))}"
        with content.skipping(kind="image", file=path), error_context(where):
            image = _read_image(node, images, split=split)
            _add_objects(node, image, content, path=path, where=where, classes=classes, with_masks=with_masks)
            content.images.append(image)
    labeled = [
        content for content in contents.values() if content.skipped or any(one.objects for one in content.images)
    ]
    if not labeled:
        raise InputError(f"{path}: no boxes in the {len(nodes)} images that it lists")
    class_names = classes.class_names(path, *labeled)
    fingerprint = hashlib.sha256(file).hexdigest()
    return {
        split: content.data_set(source=path, class_names=class_names, fingerprint=fingerprint)
        for split, content in contents.items()
    }


def _read_image(node: ElementTree.Element, images: ImageFolder, *, split: str) -> AnnotatedImage:
    name = images.named(node.get("name"), split=split or None)
    return AnnotatedImage(file_name=name, size=size_of_texts(node.get("height"), node.get("width")))


def _add_objects(
    node: ElementTree.Element,
    image: AnnotatedImage,
    content: SplitContent,
    *,
    path: str,
    where: str,
    classes: ClassNumbering,
    with_masks: bool,
) -> None:
    for index, shape in enumerate(node):
        if shape.tag in _WITHOUT_AREA:
            reason = f"a {shape.tag} of {path} encloses no area: ignored"
            content.note(image.file_name, reason, kind="box")
        elif read := _SHAPES.get(shape.tag):
            with content.skipping(file=path, image=image), error_context(f"{where}: {shape.tag} {index}"):
                category_id = classes.id_of(shape.get("label", ""))
                box, outline = read(shape)
                image.objects.append(
                    AnnotatedObject(
                        category_id=category_id,
                        box_xywh=box,
                        segmentation=_segmentation(shape, outline, image.size) if with_masks else None,
                    )
                )
                if _degrees(shape):
                    content.notes["rotated shapes became the boxes around them"] += 1


def _number(node: ElementTree.Element, name: str) -> float:
    return _bounded(node.get(name, ""), where=name)


def _bounded(text: str, *, where: str) -> float:
    number = number_in_text(text, where=where)
    if abs(number) > LARGEST_COORDINATE:
        raise InputError(f"{where} is {number:g}, expected at most {LARGEST_COORDINATE:g}")
    return number


def _segmentation(node: ElementTree.Element, outline: list[float] | None, size: tuple[int, int] | None) -> list | dict:
    if node.tag == "mask":
        return _mask_run_lengths(node, size)
    if outline is None:
        raise InputError("is a box, and --include_masks needs outlines")
    return [outline]


def _box(node: ElementTree.Element) -> tuple[tuple, None]:
    left, top, right, bottom = (_number(node, side) for side in ("xtl", "ytl", "xbr", "ybr"))
    box, degrees = (left, top, right - left, bottom - top), _degrees(node)
    return (box_around_rotated(box, degrees) if degrees else box), None


def _polygon(node: ElementTree.Element) -> tuple[tuple, list]:
    outline = []
    for point in node.get("points", "").split(";"):
        pair = point.split(",")
        if len(pair) != 2:
            raise InputError(f"has the point {shown(point)}, expected x,y")
        outline += [_bounded(text, where="a point") for text in pair]
    return box_around(outline), outline


def _ellipse(node: ElementTree.Element) -> tuple[tuple, list]:
    x, y, x_radius, y_radius = (_number(node, name) for name in ("cx", "cy", "rx", "ry"))
    degrees = _degrees(node)
    turn = math.radians(degrees)
    across = math.hypot(x_radius * math.cos(turn), y_radius * math.sin(turn))
    down = math.hypot(x_radius * math.sin(turn), y_radius * math.cos(turn))
    outline = ellipse_outline((x, y), (x_radius, y_radius), degrees)
    return (x - across, y - down, 2 * across, 2 * down), outline


def _mask(node: ElementTree.Element) -> tuple[tuple, None]:
    return tuple(_number(node, name) for name in ("left", "top", "width", "height")), None


def _mask_run_lengths(node: ElementTree.Element, size: tuple[int, int] | None) -> dict:
    """Return run lengths of the full image from row-wise run lengths of a rectangle, which begin with zeros."""
    left, top, width, height = _mask(node)[0]
    if size is None:
        raise InputError("is a mask of an image without width and height, which --include_masks needs")
    inside = min(left, top) >= 0 and min(width, height) >= 1 and left + width <= size[1] and top + height <= size[0]
    if not inside or any(side % 1 for side in (left, top, width, height)) or size[0] * size[1] > LARGEST_IMAGE_PIXELS:
        raise InputError(
            f"covers x {left:g} to {left + width:g}, y {top:g} to {top + height:g}, expected whole pixels "
            f"inside the image of {size[1]}x{size[0]}, of at most {LARGEST_IMAGE_PIXELS} pixels"
        )
    runs = [_bounded(text, where="a run length") for text in node.get("rle", "").split(",")]
    if min(runs) < 0 or any(run % 1 for run in runs) or sum(runs) != width * height:
        raise InputError(f"has run lengths {shown(runs)}, expected whole numbers with the sum {width * height:g}")
    values = np.arange(len(runs), dtype=np.uint8) & 1
    pixels = np.zeros(size, np.uint8)
    pixels[int(top) : int(top + height), int(left) : int(left + width)] = np.repeat(
        values, np.array(runs, np.int64)
    ).reshape(int(height), int(width))
    return run_lengths(pixels)


_SHAPES = {"box": _box, "polygon": _polygon, "ellipse": _ellipse, "mask": _mask}


def _degrees(node: ElementTree.Element) -> float:
    """Return the rotation in degrees, clockwise in the image."""
    return _number(node, "rotation") if node.get("rotation") else 0.0
