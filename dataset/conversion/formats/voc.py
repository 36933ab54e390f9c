"""Read Pascal VOC annotations: one XML file per image, as well as roLabelImg's rotated boxes.

Coordinates are continuous pixels: the box is (xmin, ymin, xmax - xmin, ymax - ymin), as in google/automl and in current
labeling tools, without the "+ 1" of the original protocol. `object/bndbox` is read, boxes of `part`s are not.
"""

import hashlib
import json
import math
import os
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dataset.class_names import ClassNames, read_class_file
from dataset.conversion.annotations import (
    ROTATED,
    AnnotatedDataSet,
    AnnotatedImage,
    AnnotatedObject,
    LabelCollector,
    NothingUsable,
    box_around,
    box_around_rotated,
    checked_file_name,
    size_of_texts,
)
from dataset.conversion.class_numbering import classes_by_name
from dataset.conversion.folder_files import FolderFiles, ImageFolder
from dataset.conversion.named_splits import SPLITS, split_of_each, split_of_folders, split_of_word
from dataset.files.bounded_files import file_errors, read_text_file
from dataset.files.file_kinds import FileKind, kind_of_file
from dataset.files.image_files import image_ids
from dataset.files.untrusted_values import error_context, is_set, listed, number_in_text, shown
from dataset.files.xml_and_yaml import read_xml
from program_support.errors import InputError


def read_voc_tree(annotations: str, images: ImageFolder, *, with_masks: bool, split: str | None) -> AnnotatedDataSet:
    """Read all XML files below a folder, or beside a file.

    Splits are the lists in ImageSets/Main beside a folder (train.txt, else trainval.txt), else the names of folders.
    What neither names is train if other images are held out.
    """
    root = Path(annotations) if Path(annotations).is_dir() else Path(annotations).parent
    tree = FolderFiles(root, (".xml",))
    paths_of_folder = defaultdict(list)
    for name in tree.names:
        paths_of_folder[tree.path(name).parent].append(tree.path(name))
    if not paths_of_folder:
        raise InputError(f"{root}: holds no XML file")
    labeled = {  # other XML files, such as GDAL's beside images, are in folders of their own
        folder: paths
        for folder, paths in paths_of_folder.items()
        if any(kind_of_file(path) is FileKind.VOC for path in paths)
    }
    entries = [
        entry
        for folder, paths in (labeled or paths_of_folder).items()
        for entry in _paths_by_split(folder, paths, root)
    ]
    splits = split_of_each([str(path) for path, _ in entries], [named for _, named in entries], where=annotations)
    return read_voc(
        annotations_folder=str(root),
        images=images,
        paths=[path for path, _ in entries],
        splits=[split or None for split in splits],
    )


def _paths_by_split(folder: Path, paths: list[Path], given: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the files of a folder with the split that a list or a folder below the given one names, or None."""
    sets = folder.parent / "ImageSets" / "Main"
    lists = {split_of_word(path.stem): path for path in sorted(sets.glob("*.txt"))}
    if "train" not in lists and (both := sets / "trainval.txt").is_file():
        lists["train"] = both
    listed_paths = {split: voc_paths(str(folder), str(lists[split])) for split in SPLITS if split in lists}
    for split, members in listed_paths.items():
        yield from ((path, split) for path in members)
    if "train" not in listed_paths:
        held_out = {path for members in listed_paths.values() for path in members}
        named = split_of_folders(f"{folder.relative_to(given).as_posix()}/a.xml")
        yield from ((path, named) for path in paths if path not in held_out)


def read_voc(
    *,
    annotations_folder: str,
    images: ImageFolder,
    paths: Sequence[Path] = (),
    splits: Sequence[str | None] = (),
    image_set_file: str = "",
    label_map_file: str = "",
    ignore_difficult: bool = False,
) -> AnnotatedDataSet:
    """Read the XML files of a folder, or only `paths`, with their `splits`, or those that `image_set_file` lists.

    Image ids are the file names if all are distinct integers, else 1, 2, ... in the order of the names. Invalid files
    and objects are skipped.

    Raises:
        InputError: with the file name, for an unknown class and data without boxes.
    """
    labels = LabelCollector(source=annotations_folder)
    paths = paths or voc_paths(annotations_folder, image_set_file)
    class_names = read_class_file(label_map_file) if label_map_file else _names_in_use(annotations_folder, paths)
    labels.hasher.update(json.dumps([class_names.to_categories(), ignore_difficult]).encode())
    by_name = class_names.by_name()
    numbers = image_ids([path.name for path in paths])
    for path, image_id, split in zip(paths, numbers, splits or [None] * len(paths), strict=True):
        labels.split = split
        with labels.skipping(file=str(path)):
            root, content = _read_xml(path)
            labels.hasher.update(hashlib.sha256(path.name.encode() + b"\0" + content).digest())
            with error_context("its image"):
                named = _text(root, "filename") or _text(root, "path")
                file_name, note = images.of_label_file(path.stem, named, split=split)
            if note:
                labels.note(note, file=str(path), image_id=image_id)
            size = size_of_texts(_text(root, "size/height"), _text(root, "size/width"))
            image = AnnotatedImage(image_id=image_id, file_name=file_name, size=size, split=split)
            if size is None:
                reason = "the annotation file has no size: taken from the image"
                labels.note(reason, file=file_name, image_id=image_id)
            for index, node in enumerate(root.findall("object")):
                with labels.skipping(f"object {index}", file=str(path), image=image):
                    annotation, note = _read_object(node, by_name)
                    if annotation.is_difficult and ignore_difficult:
                        continue
                    image.objects.append(annotation)
                    if note:
                        labels.notes[note] += 1
            labels.images.append(image)
    if not any(image.objects for image in labels.images):
        raise NothingUsable(annotations_folder, labels.skipped)
    return labels.data_set(class_names)


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
    with file_errors(folder):
        return sorted(path for path in Path(folder).iterdir() if path.suffix.lower() == ".xml" and path.name[0] != ".")


def _read_xml(path: Path) -> tuple[ElementTree.Element, bytes]:
    if not os.path.exists(path):  # Path.exists raises for a name that is too long
        raise InputError(f"{path}: no such file, and a list of images names it")
    return read_xml(path, root_tag="annotation", what="a VOC annotation")


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def _read_object(node: ElementTree.Element, by_name: dict[str, int]) -> tuple[AnnotatedObject, str | None]:
    """Return an object, and how its box was derived if it is not its bndbox."""
    name = _text(node, "name")
    if not name:
        raise InputError("has no name")
    if name not in by_name:
        raise InputError(f"is of class {shown(name)}; the classes are {listed(by_name)}")
    with error_context(f"({shown(name)[1:-1]})"):
        box, note = _box(node)
        is_difficult = is_set(_text(node, "difficult"), "difficult")
    return AnnotatedObject(category_id=by_name[name], box_xywh=box, is_difficult=is_difficult), note


def _box(node: ElementTree.Element) -> tuple[tuple[float, float, float, float], str | None]:
    if (rotated := node.find("robndbox")) is not None:
        x, y, width, height, angle = _numbers(rotated, ("cx", "cy", "w", "h", "angle"))
        return box_around_rotated((x - width / 2, y - height / 2, width, height), math.degrees(angle)), ROTATED
    if (bndbox := node.find("bndbox")) is not None:
        left, top, right, bottom = _numbers(bndbox, ("xmin", "ymin", "xmax", "ymax"))
        box = (left, top, right - left, bottom - top)
        if degrees := _degrees(node):
            return box_around_rotated(box, degrees), ROTATED
        return box, None
    if outline := _outline(node):
        return box_around(outline), "objects without a bndbox got the box around their polygon"
    raise InputError("has no bndbox")


def _numbers(node: ElementTree.Element, names: Iterable[str]) -> list[float]:
    return [number_in_text(_text(node, name), where=name) for name in names]


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
    if points := polygon.findall("pt"):
        return [value for point in points for value in _numbers(point, ("x", "y"))]
    return _numbers(polygon, [f"{axis}{place}" for place in range(1, len(polygon) // 2 + 1) for axis in "xy"])


def _names_in_use(folder: str, paths: Iterable[Path]) -> ClassNames:
    """Return the 20 VOC classes if they include all names, else every name in the folder in alphabetical order.

    All files of the folder are read, including those outside the image set, so that all image sets have the same ids.
    Invalid files, which are skipped later, name no classes.
    """
    used, invalid = set(), LabelCollector(source=folder)
    for path in sorted({*_xml_files(folder), *paths}):
        with invalid.skipping(file=str(path)):
            used |= {_text(node, "name") for node in _read_xml(path)[0].findall("object")}
    used -= {""}
    if not used and invalid.skipped:
        raise NothingUsable(folder, invalid.skipped)
    with error_context(f"{folder}:"):
        return classes_by_name(used)
