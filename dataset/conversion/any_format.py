"""Labels of any format: recognized by content, read as the splits of a data set.

Splits are train, val and test, or "" if there are none.
"""

import hashlib
import itertools
import os
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dataset.class_names import ClassNames
from dataset.conversion.annotations import (
    AnnotatedDataSet,
    AnnotatedImage,
    ReportEntry,
)
from dataset.conversion.class_numbering import common_classes, in_one_order, note_of_other_ids, with_composed_names
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.csv_boxes import csv_header_error
from dataset.conversion.named_splits import (
    HELD_OUT,
    SPLITS,
    split_of_file,
    split_of_folders,
    split_of_root,
    splits_by_name,
    without_held_out,
)
from dataset.conversion.upright_labels import mark_upright
from dataset.files.file_kinds import (
    CORE_FORMATS,
    FORMAT_NAMES,
    FileKind,
    LabelFormat,
    annotations_in,
    holds_records,
    is_conversion_output,
    kind_and_advice,
    kind_of_file,
    label_formats,
)
from dataset.files.untrusted_values import listed
from program_support.claimed_outputs import is_output
from program_support.errors import InputError

_EXPECTED = (
    "a COCO JSON file, Pascal VOC XML files, YOLO .txt files with a data.yaml or classes.txt, a CSV table of boxes, "
    f"or labels of {', '.join(FORMAT_NAMES[len(CORE_FORMATS) :])}"
)
_MOST_FILES = 1000  # files that records are looked for in


class RecognizedLabels(NamedTuple):
    """A format, the reason, and the files that identify it (a sample in large folders)."""

    format: LabelFormat
    reason: str
    files: list[Path]


def recognize(annotations: str, *, label_format: str = "auto") -> RecognizedLabels:
    """Return the format of a file or of a folder, which is searched three levels deep.

    A `label_format` other than "auto" is returned without detection.

    Raises:
        InputError: no labels, or labels of several formats, are found.
    """
    path, other_tables = Path(annotations), []
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long or in unreadable folders
        seen = [*annotations_in(path)]
        # Records, or proposals of next_images.py, may be next to their labels.
        seen = [one for one in seen if not (is_conversion_output(one[0]) or is_output(one[0], below=path))] or seen
        # Any table has the kind CSV.
        reasons = {file: csv_header_error(str(file)) for file, kind in seen if kind is FileKind.CSV}
        other_tables = [reason for reason in reasons.values() if reason]
        recognized = [(file, kind) for file, kind in seen if not reasons.get(file)]
    elif os.path.exists(path):
        recognized = [(path, kind)] if (kind := kind_of_file(path)) else []
    else:
        raise InputError(f"--annotations={annotations}: no such file or folder; expected {_EXPECTED}")
    formats, by_format = label_formats(), dict[str, list[tuple[Path, FileKind | LabelFormat]]]()
    for name, one in formats.items():
        if files := [(file, kind) for file, kind in recognized if kind is one or kind in one.kinds]:
            by_format[name] = files
    if label_format == "auto" and len(by_format) > 1:
        examples = "; ".join(_first(files) for files in by_format.values())
        raise InputError(
            f"--annotations={annotations}: holds labels of {len(by_format)} formats ({examples}); give the file "
            f"or folder to convert, or --format={'|'.join(by_format)}"
        )
    if label_format != "auto" or by_format:
        chosen = formats[next(iter(by_format)) if label_format == "auto" else label_format]
        files = by_format.get(chosen.name, [])
        reason = f"labels: {chosen.title}, because {_first(files) if files else '--format selects it'}"
        return RecognizedLabels(chosen, reason, [file for file, _ in files])
    for file, kind in recognized:
        if kind is FileKind.UNREAD:
            raise InputError(f"--annotations={annotations}: {file} is {kind_and_advice(file)[1]}")
    if other_tables:
        raise InputError(other_tables[0])
    candidates = itertools.islice([path] if path.is_file() else path.rglob("*"), _MOST_FILES)
    if records := next(filter(holds_records, candidates), None):
        raise InputError(
            f"--annotations={annotations}: {records} holds records already; train.py, eval.py and doctor.py read them "
            f"as they are, for example doctor.py --records='{records}'"
        )
    what = f"is {recognized[0][1].value}" if recognized else "holds no labels of a known format"
    raise InputError(f"--annotations={annotations}: {what}; expected {_EXPECTED}, or --format to name one")


def _first(files: Iterable[tuple[Path, FileKind | LabelFormat]]) -> str:
    file, kind = next(iter(files))
    return f"{file} is {kind.value}"


DataSplits = dict[str, AnnotatedDataSet]
_MOST_BATCHES = 20  # files of labels that are read as one data set


def read_labels(
    labels: RecognizedLabels,
    annotations: str,
    images: ImageFolder,
    *,
    with_masks: bool,
    label_map: ClassNames | None,
) -> DataSplits:
    """Read labels with consistent class and image ids across all splits.

    Raises:
        InputError: for invalid labels, for a split without boxes, and if masks are requested of a format that has
            none.
    """
    has_ids, is_coco = labels.format.has_ids, labels.format.name == "coco"
    if with_masks and not labels.format.has_masks:
        raise InputError(
            f"--include_masks: {labels.format.title} labels have only boxes; expected outlines from COCO, YOLO, CVAT, "
            "labelme, Label Studio or DOTA"
        )
    reader = pkgutil.resolve_name(labels.format.reader)

    def read(path: str, split: str | None) -> AnnotatedDataSet:
        data = reader(path, images, with_masks=with_masks, split=split)
        for image in data.images:
            if image.in_shares:
                images.in_pixels(image)
        return data

    if labels.format.is_file_per_image:
        by_split = {"": read(annotations, None)}
    else:
        by_split = _read_files(labels, annotations, read)
    by_split = _named_splits(by_split, annotations, images)
    by_split = {split: with_composed_names(data) for split, data in by_split.items()}
    if not is_coco:  # COCO has image ids
        by_split = {split: _with_distinct_images(data) for split, data in by_split.items()}
    mark_upright([image for data in by_split.values() for image in data.images], images.folder)
    for data in by_split.values():
        _check_coordinates(data)
        if note := images.note_of_other_names(image.file_name for image in data.images):
            data.noted.append(ReportEntry(kind="image", file=data.source, reason=note))
    class_names = label_map or common_classes(by_split, own_numbers=has_ids)
    if has_ids and not label_map and (note := note_of_other_ids(by_split, class_names)):
        next(iter(by_split.values())).noted.append(ReportEntry(kind="image", file=annotations, reason=note))
    return in_one_order(by_split, class_names, own_image_ids=is_coco)


def _named_splits(by_split: DataSplits, annotations: str, images: ImageFolder) -> DataSplits:
    """Return the splits by the images' own, by their folders or by the given folder, if files define none."""
    if [*by_split] != [""]:
        return by_split
    whole = split_of_root(images.folder) or split_of_root(annotations)
    return splits_by_name(
        by_split[""], [image.split or split_of_folders(image.file_name) or whole for image in by_split[""].images]
    )


def _read_files(
    labels: RecognizedLabels, annotations: str, read: Callable[[str, str | None], AnnotatedDataSet]
) -> DataSplits:
    """Return a split for each file if file or folder names identify it; a single file may hold several splits.

    A file whose name tells no split is train if the others are held out.
    """
    root, files = Path(annotations), labels.files
    if not files and root.is_dir():
        raise InputError(f"--annotations={annotations}: holds no file of {labels.format.title} labels")
    if len(files) <= 1:
        path = files[0] if files else root
        named = split_of_file(path.relative_to(root).as_posix() if root.is_dir() else path.name)
        data = read(str(path), None)
        if named is None:
            return {"": data}
        # Images in held-out folders remain held out
        folders = [split_of_folders(image.file_name) for image in data.images]
        splits = [
            image.split or (folder if folder in HELD_OUT else named)
            for image, folder in zip(data.images, folders, strict=True)
        ]
        return splits_by_name(data, splits)
    of_split: dict[str | None, list[Path]] = {}
    for file in files:
        of_split.setdefault(split_of_file(file.relative_to(root).as_posix()), []).append(file)
    for split, members in of_split.items():
        # COCO also has captions and keypoints.
        instances = [file for file in members if file.name.startswith("instances")]
        of_split[split] = instances if len(instances) == 1 else members
    if [*of_split] == [None] and len(files) <= _MOST_BATCHES:  # of more files, a sample identifies the format
        return _pooled({str(file): read(str(file), None) for file in files}, annotations)
    is_rest = "train" not in of_split and None in of_split
    if is_rest:
        of_split["train"] = of_split.pop(None)
    if None in of_split or any(len(members) > 1 for members in of_split.values()):
        raise InputError(
            f"--annotations={annotations}: holds {len(files)} files of {labels.format.title} labels, "
            f"{listed(files[:3])}; expected one of them, one each named train, val and test, or up to "
            f"{_MOST_BATCHES} without these names"
        )
    by_split = {
        split: read(str(of_split[split][0]), None if is_rest and split == "train" else split)
        for split in SPLITS
        if split in of_split
    }
    return without_held_out(by_split) if is_rest else by_split


def _pooled(by_file: DataSplits, annotations: str) -> DataSplits:
    """Return the images of several files as one split; classes are the same if their names are.

    Raises:
        InputError: an image is in two files.
    """
    times = Counter(name for data in by_file.values() for name in {image.file_name for image in data.images})
    if shared := sorted(name for name, count in times.items() if count > 1):
        raise InputError(
            f"--annotations={annotations}: {len(shared)} images, such as {shared[0]}, are in several of the "
            f"{len(by_file)} files {listed(by_file)}; expected one of them"
        )
    parts = [*in_one_order(by_file, common_classes(by_file, own_numbers=True), own_image_ids=False).values()]
    return {
        "": replace(
            parts[0],
            images=sorted((image for part in parts for image in part.images), key=lambda image: image.file_name),
            listed_boxes=sum(part.listed_boxes for part in parts),
            fingerprint=hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest(),
            skipped=[finding for part in parts for finding in part.skipped],
            noted=[finding for part in parts for finding in part.noted],
        )
    }


def _with_distinct_images(data: AnnotatedDataSet) -> AnnotatedDataSet:
    """Return the split with the first annotation of each image; others are skipped, as copies of another file."""
    times = Counter(image.file_name for image in data.images)
    first: dict[str, AnnotatedImage] = {}
    repeated = [image for image in data.images if first.setdefault(image.file_name, image) is not image]
    skipped = [
        ReportEntry(
            kind="image",
            file=data.source,
            reason=f"{times[image.file_name]} of its annotations are of the image {image.file_name}, expected one; "
            "remove copies that name the image of another file",
        )
        for image in repeated
    ]
    return replace(data, images=[*first.values()], skipped=[*data.skipped, *skipped]) if repeated else data


def _check_coordinates(data: AnnotatedDataSet) -> None:
    """Raise InputError for boxes that are fractions where pixels are expected."""
    boxes = [one.box_xywh for image in data.images for one in image.objects if not image.in_shares]
    if boxes and all(0 <= x <= x + width <= 1 and 0 <= y <= y + height <= 1 for x, y, width, height in boxes):
        raise InputError(f"{data.source}: its boxes are from 0 to 1, fractions of the image's sides; expected pixels")
