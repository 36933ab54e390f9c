"""Read folders of Pascal VOC annotations, one XML file per image.

Boxes are continuous pixel coordinates: x = xmin, width = xmax - xmin, without the "+ 1" and the 1-based origin of the
original VOC protocol. google/automl, most converters and current labeling tools do the same, and a box that spans the
image stays inside it.
"""

import hashlib
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    Finding,
    checked_file_name,
)
from dataset.conversion.class_numbering import classes_by_name, read_label_map
from dataset.files.bounded_files import read_regular_file
from dataset.files.image_files import image_ids
from dataset.files.untrusted_values import error_context, listed, number_in_text, shown
from dataset.files.xml_files import read_xml
from program_support.errors import InputError

_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".JPG", ".JPEG", ".png", ".PNG", ".bmp", ".webp")


def read_voc(
    *,
    annotations_folder: str,
    image_folder: str,
    image_set_file: str = "",
    label_map_file: str = "",
    ignore_difficult: bool = False,
    is_image: Callable[[str], bool] | None = None,
) -> AnnotatedDataSet:
    """Read the XML files of a folder, or those that `image_set_file` lists.

    Image ids are the file names if all are distinct integers, else 1, 2, ... in the order of the names. `is_image`
    returns whether an image exists; by default it looks in `image_folder`. Raises InputError, with the file name, for
    invalid files, an unknown class, and data without boxes.
    """
    paths = _annotation_paths(annotations_folder, image_set_file)
    class_names = read_label_map(label_map_file) if label_map_file else _names_in_use(annotations_folder, paths)
    hasher = hashlib.sha256(json.dumps([class_names.to_categories(), ignore_difficult]).encode())
    by_name = {name: category_id for category_id, name in zip(class_names.category_ids, class_names.names, strict=True)}
    images, noted = [], []
    is_image = is_image or (lambda name: os.path.isfile(os.path.join(image_folder, name)))
    for path, image_id in zip(paths, image_ids([path.name for path in paths]), strict=True):
        root = _read_xml(path, hasher)
        image = AnnotatedImage(
            image_id=image_id, file_name=_image_name(root, path, is_image), size=_image_size(root, path)
        )
        if image.size is None:
            noted.append(
                Finding(
                    kind="image",
                    file=image.file_name,
                    image_id=image_id,
                    reason="the annotation file has no size: taken from the image",
                )
            )
        for index, node in enumerate(root.findall("object")):
            annotation = _read_object(node, where=f"{path}: object {index}", by_name=by_name)
            if not (annotation.is_difficult and ignore_difficult):
                image.objects.append(annotation)
        images.append(image)
    listed_boxes = sum(len(image.objects) for image in images)
    if not listed_boxes:
        raise InputError(f"{annotations_folder}: the {len(paths)} annotation files contain no boxes")
    return AnnotatedDataSet(
        source=annotations_folder,
        images=images,
        class_names=class_names,
        fingerprint=hasher.hexdigest(),
        listed_boxes=listed_boxes,
        noted=noted,
    )


def _annotation_paths(folder: str, image_set_file: str) -> list[Path]:
    """Return the XML files in the order of their names."""
    if not Path(folder).is_dir():
        raise InputError(f"{folder or 'annotations folder'}: no such folder; expected the folder with the XML files")
    if not image_set_file:
        paths = _xml_files(folder)
        if not paths:
            raise InputError(f"{folder}: holds no XML file")
        for path in paths:
            checked_file_name(path.name, where=f"{folder}: an XML file")
        return paths
    try:
        lines = read_regular_file(image_set_file).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{image_set_file}: cannot be read ({error})") from error
    names = [line.split() for line in lines if line.strip()]
    # VOC's per-class image sets mark images without the class by -1.
    stems = sorted({checked_file_name(name, where=image_set_file) for name, *rest in names if rest != ["-1"]})
    if not stems:
        raise InputError(f"{image_set_file}: lists no images")
    paths = [Path(folder, f"{stem}.xml") for stem in stems]
    absent = [path for path in paths if not os.path.isfile(path)]  # Path.is_file raises for a name that is too long
    if absent:
        raise InputError(
            f"{image_set_file}: {len(absent)} of {len(paths)} images have no annotation file, such as {absent[0]}"
        )
    return paths


def _xml_files(folder: str) -> list[Path]:
    """Return XML files in the order of their names, without hidden files such as ._a.xml."""
    try:
        return sorted(path for path in Path(folder).iterdir() if path.suffix.lower() == ".xml" and path.name[0] != ".")
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error


def _read_xml(path: Path, hasher=None) -> ElementTree.Element:
    root, content = read_xml(path, root_tag="annotation", what="a VOC annotation")
    if hasher is not None:
        hasher.update(hashlib.sha256(path.name.encode() + b"\0" + content).digest())
    return root


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _image_name(root: ElementTree.Element, path: Path, is_image: Callable[[str], bool]) -> str:
    """Return the image with the name of the XML file, else the file name in it; it need not exist.

    The file name in it is that of before a renaming, and may be that of another image now.
    """
    named = _text(root, "filename")
    alike = [path.stem + suffix for suffix in _IMAGE_SUFFIXES]
    if not named:
        return next(filter(is_image, alike), alike[0])
    checked_file_name(named, where=str(path))
    candidates = [named, *alike] if Path(named).stem == path.stem else [*alike, named]
    return next(filter(is_image, candidates), named)


def _image_size(root: ElementTree.Element, path: Path) -> tuple[int, int] | None:
    """Return (height, width); None if it is missing or 0, as some labeling tools write it."""
    texts = [_text(root, f"size/{side}") for side in ("height", "width")]
    if not any(texts):
        return None
    height, width = (
        number_in_text(text, where=f"{path}: its {side}") for side, text in zip(("height", "width"), texts, strict=True)
    )
    if height == 0 and width == 0:
        return None
    if height != int(height) or width != int(width) or height < 1 or width < 1:
        raise InputError(f"{path}: the size is {shown(texts[1])} x {shown(texts[0])}, expected whole numbers of pixels")
    return int(height), int(width)


def _read_object(node: ElementTree.Element, *, where: str, by_name: dict[str, int]) -> AnnotatedObject:
    name = _text(node, "name")
    if name not in by_name:
        raise InputError(f"{where} is of class {shown(name)}; the classes are {listed(by_name)}")
    where = f"{where} ({shown(name)[1:-1]})"
    if node.find("bndbox") is None:
        raise InputError(f"{where} has no bndbox")
    left, top, right, bottom = (
        number_in_text(_text(node, f"bndbox/{side}"), where=f"{where}: {side}")
        for side in ("xmin", "ymin", "xmax", "ymax")
    )
    return AnnotatedObject(
        annotation_id=None,
        category_id=by_name[name],
        box_xywh=(left, top, right - left, bottom - top),
        is_difficult=_text(node, "difficult") not in ("", "0"),
    )


def _names_in_use(folder: str, paths: Iterable[Path]) -> ClassNames:
    """Return the 20 VOC classes if they include all names, else every name in the folder in alphabetical order.

    All files of the folder are read, including those outside the image set, so that all image sets have the same ids.
    """
    used = {
        _text(node, "name")
        for path in sorted({*_xml_files(folder), *paths})
        for node in _read_xml(path).findall("object")
    }
    if "" in used:
        raise InputError(f"{folder}: objects without a name")
    with error_context(f"{folder}:"):
        return classes_by_name(used)
