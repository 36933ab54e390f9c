"""Read Pascal VOC annotations: one XML file per image, as well as roLabelImg's rotated boxes.

Coordinates are continuous pixels: the box is (xmin, ymin, xmax - xmin, ymax - ymin), as in google/automl and in current
labeling tools, without the "+ 1" of the original protocol. `object/bndbox` is read, boxes of `part`s are not.
"""

import hashlib
import json
import math
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    NothingUsable,
    ReportEntry,
    SplitContent,
    box_around,
    box_around_rotated,
    checked_file_name,
    size_of_texts,
)
from dataset.conversion.class_numbering import classes_by_name, read_label_map
from dataset.conversion.folder_files import ImageFolder
from dataset.files.bounded_files import read_text_file
from dataset.files.image_files import image_ids
from dataset.files.untrusted_values import error_context, is_set, listed, number_in_text, shown
from dataset.files.xml_files import read_xml
from program_support.errors import InputError


def read_voc(
    *,
    annotations_folder: str,
    images: ImageFolder,
    paths: Sequence[Path] = (),
    image_set_file: str = "",
    label_map_file: str = "",
    ignore_difficult: bool = False,
    split: str | None = None,
) -> AnnotatedDataSet:
    """Read the XML files of a folder, or only `paths`, or those that `image_set_file` lists.

    Image ids are the file names if all are distinct integers, else 1, 2, ... in the order of the names. Invalid files
    and objects are skipped.

    Raises:
        InputError: with the file name, for an unknown class and data without boxes.
    """
    paths = paths or voc_paths(annotations_folder, image_set_file)
    class_names = read_label_map(label_map_file) if label_map_file else _names_in_use(annotations_folder, paths)
    hasher = hashlib.sha256(json.dumps([class_names.to_categories(), ignore_difficult]).encode())
    by_name = {name: category_id for category_id, name in zip(class_names.category_ids, class_names.names, strict=True)}
    content = SplitContent()
    for path, image_id in zip(paths, image_ids([path.name for path in paths]), strict=True):
        with content.skipping(kind="image", file=str(path)):
            root = _read_xml(path, hasher)
            with error_context("its image"):
                named = _text(root, "filename") or _text(root, "path")
                file_name, note = images.of_label_file(path.stem, named, split=split)
            if note:
                content.note(str(path), note, image_id=image_id)
            image = AnnotatedImage(
                image_id=image_id,
                file_name=file_name,
                size=size_of_texts(_text(root, "size/height"), _text(root, "size/width")),
            )
            if image.size is None:
                reason = "the annotation file has no size: taken from the image"
                content.note(file_name, reason, image_id=image_id)
            _add_objects(root, image, path=path, by_name=by_name, content=content, ignore_difficult=ignore_difficult)
            content.images.append(image)
    if not any(image.objects for image in content.images):
        raise NothingUsable(annotations_folder, content.skipped)
    return content.data_set(source=annotations_folder, class_names=class_names, fingerprint=hasher.hexdigest())


def voc_paths(folder: str, image_set_file: str = "") -> list[Path]:
    """Return the XML files of a folder, or those that `image_set_file` lists, in the order of their names."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder or 'annotations folder'}: no such folder; expected the folder with the XML files")
    if not image_set_file:
        paths = _xml_files(folder)
        if not paths:
            raise InputError(f"{folder}: holds no XML file")
        with error_context(f"{folder}: an XML file"):
            for path in paths:
                checked_file_name(path.name)
        return paths
    names = [line.split() for line in read_text_file(image_set_file)[0].splitlines() if line.strip()]
    with error_context(image_set_file):
        # VOC's per-class image sets mark images without the class by -1.
        stems = sorted({checked_file_name(name) for name, *rest in names if rest != ["-1"]})
    if not stems:
        raise InputError(f"{image_set_file}: lists no images")
    return [Path(folder, f"{stem}.xml") for stem in stems]


def _xml_files(folder: str) -> list[Path]:
    """Return XML files in the order of their names, without hidden files such as ._a.xml."""
    try:
        return sorted(path for path in Path(folder).iterdir() if path.suffix.lower() == ".xml" and path.name[0] != ".")
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error


def _read_xml(path: Path, hasher=None) -> ElementTree.Element:
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise InputError(f"{path}: no such file, and a list of images names it")
    root, content = read_xml(path, root_tag="annotation", what="a VOC annotation")
    if hasher is not None:
        hasher.update(hashlib.sha256(path.name.encode() + b"\0" + content).digest())
    return root


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _add_objects(
    root: ElementTree.Element,
    image: AnnotatedImage,
    *,
    path: Path,
    by_name: dict[str, int],
    content: SplitContent,
    ignore_difficult: bool,
) -> None:
    for index, node in enumerate(root.findall("object")):
        with content.skipping(file=str(path), image=image), error_context(f"object {index}"):
            annotation, note = _read_object(node, by_name=by_name)
            if annotation.is_difficult and ignore_difficult:
                continue
            image.objects.append(annotation)
            if note:
                content.notes[note] += 1


def _read_object(node: ElementTree.Element, *, by_name: dict[str, int]) -> tuple[AnnotatedObject, str | None]:
    name = _text(node, "name")
    if not name:
        raise InputError("has no name")
    if name not in by_name:
        raise InputError(f"is of class {shown(name)}; the classes are {listed(by_name)}")
    with error_context(f"({shown(name)[1:-1]})"):
        box, note = _box(node)
        return AnnotatedObject(
            category_id=by_name[name],
            box_xywh=box,
            is_difficult=is_set(_text(node, "difficult"), "difficult"),
        ), note


def _box(node: ElementTree.Element) -> tuple[tuple[float, float, float, float], str | None]:
    """Return the box (x, y, width, height) of an object, and how it was derived if it is not its bndbox."""
    if (rotated := node.find("robndbox")) is not None:
        x, y, width, height, angle = _numbers(rotated, ("cx", "cy", "w", "h", "angle"))
        box = (x - width / 2, y - height / 2, width, height)
        return box_around_rotated(box, math.degrees(angle)), "rotated boxes became the boxes around them"
    if (bndbox := node.find("bndbox")) is not None:
        left, top, right, bottom = _numbers(bndbox, ("xmin", "ymin", "xmax", "ymax"))
        box = (left, top, right - left, bottom - top)
        degrees = _degrees(node)
        if degrees:
            return box_around_rotated(box, degrees), "rotated boxes became the boxes around them"
        return box, None
    if outline := _outline(node):
        return box_around(outline), "objects without a bndbox got the box around their polygon"
    raise InputError("has no bndbox")


def _numbers(node: ElementTree.Element, names: Iterable[str]) -> list[float]:
    return [number_in_text(_text(node, name), where=f"{name}") for name in names]


def _degrees(node: ElementTree.Element) -> float:
    """Return the rotation that CVAT writes as an attribute of an unrotated box; 0 without one."""
    for attribute in node.iterfind("attributes/attribute"):
        if _text(attribute, "name") == "rotation" and _text(attribute, "value"):
            return number_in_text(_text(attribute, "value"), where="rotation")
    return 0.0


def _outline(node: ElementTree.Element) -> list[float]:
    """Return the points of a polygon as x, y, x, y, ..: LabelMe's <pt><x> or Roboflow's <x1><y1><x2>."""
    polygon = node.find("polygon")
    if polygon is None:
        return []
    points = polygon.findall("pt")
    if points:
        return [value for point in points for value in _numbers(point, ("x", "y"))]
    count = sum(1 for _ in polygon) // 2
    return _numbers(polygon, [f"{axis}{place}" for place in range(1, count + 1) for axis in "xy"])


def _names_in_use(folder: str, paths: Iterable[Path]) -> ClassNames:
    """Return the 20 VOC classes if they include all names, else every name in the folder in alphabetical order.

    All files of the folder are read, including those outside the image set, so that all image sets have the same ids.
    Invalid files, which are skipped later, name no classes.
    """
    used, findings = set(), []
    for path in sorted({*_xml_files(folder), *paths}):
        try:
            used |= {_text(node, "name") for node in _read_xml(path).findall("object")}
        except InputError as error:
            findings.append(ReportEntry(kind="image", file=str(path), reason=str(error).removeprefix(f"{path}: ")))
    used -= {""}
    if not used and findings:
        raise NothingUsable(folder, findings)
    with error_context(f"{folder}:"):
        return classes_by_name(used)
