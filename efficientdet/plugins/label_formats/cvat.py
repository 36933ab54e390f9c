"""Read "CVAT for images 1.1", one XML file with an element for each image and each shape.

Format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat. Coordinates are pixels of the image.
"""

import xml.etree.ElementTree as ElementTree

from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    NothingUsable,
    box_around,
    box_around_rotated,
    coordinate,
    ellipse_outline,
    size_of_texts,
)
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.named_splits import split_of_word
from dataset.files.untrusted_values import error_context, shown
from dataset.files.xml_and_yaml import read_xml
from program_support.errors import InputError

_WITHOUT_AREA = ("polyline", "points", "tag", "skeleton", "cuboid")


def read_cvat(path: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read a file; classes are the labels of the task and of the shapes. Invalid images and shapes are skipped.

    Raises:
        InputError: for a file without boxes, and for the tracks of a video.
    """
    labels = LabelCollector(source=path)
    root, content = read_xml(path, root_tag="annotations", what="a CVAT xml")
    labels.hasher.update(content)
    with error_context(f"{path}: a label of the task"):
        for node in root.iterfind("meta//labels/label/name"):
            labels.id_of(node.text or "")
    if root.find("track") is not None:
        raise InputError(
            f"{path}: has tracks of a video, which are not read: export the task as 'CVAT for images 1.1' or COCO, "
            "with its images"
        )
    for node in root.iterfind("image"):
        where = f"image {shown(node.get('name'))}"
        with labels.skipping(where):
            subset = labels.split = split_of_word(node.get("subset", ""))
            image = AnnotatedImage(
                file_name=images.named(node.get("name"), split=subset or split),
                size=size_of_texts(node.get("height"), node.get("width")),
                split=subset,
            )
            _add_objects(node, image, labels, where=where, with_masks=with_masks)
            labels.images.append(image)
    if not labels.skipped and not any(image.objects for image in labels.images):
        raise NothingUsable(path, [])
    return labels.named_data_set()


def _add_objects(
    node: ElementTree.Element, image: AnnotatedImage, labels: LabelCollector, *, where: str, with_masks: bool
) -> None:
    for index, shape in enumerate(node):
        if shape.tag in _WITHOUT_AREA:
            reason = f"a {shape.tag} of {labels.source} encloses no area: ignored"
            labels.note(reason, file=image.file_name, kind="box")
        elif read := _SHAPES.get(shape.tag):
            with labels.skipping(f"{where}: {shape.tag} {index}", image=image):
                category_id = labels.id_of(shape.get("label", ""))
                box, outline = read(shape)
                if with_masks and outline is None:
                    raise InputError(f"is a {shape.tag}, and --include_masks needs outlines: export masks as COCO")
                segmentation = [outline] if with_masks else None
                image.objects.append(AnnotatedObject(category_id=category_id, box_xywh=box, segmentation=segmentation))
                if _degrees(shape):
                    labels.notes[ROTATED] += 1


def _number(node: ElementTree.Element, name: str) -> float:
    return coordinate(node.get(name, ""), name)


def _degrees(node: ElementTree.Element) -> float:
    """Return the rotation in degrees, clockwise in the image."""
    return _number(node, "rotation") if node.get("rotation") else 0.0


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
        outline += [coordinate(text, "a point") for text in pair]
    return box_around(outline), outline


def _ellipse(node: ElementTree.Element) -> tuple[tuple, list]:
    x, y, x_radius, y_radius = (_number(node, name) for name in ("cx", "cy", "rx", "ry"))
    outline = ellipse_outline((x, y), (x_radius, y_radius), _degrees(node))
    return box_around(outline), outline


def _mask(node: ElementTree.Element) -> tuple[tuple, None]:
    return tuple(_number(node, name) for name in ("left", "top", "width", "height")), None


_SHAPES = {"box": _box, "polygon": _polygon, "ellipse": _ellipse, "mask": _mask}
