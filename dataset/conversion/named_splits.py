"""Recognize the split of a folder or a file by its name, or of an image by earlier records: train, val or test."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, ReportEntry
from dataset.files.bounded_files import read_image_file, read_json
from program_support.errors import InputError
from program_support.remote_addresses import read_ahead

SPLITS = ("train", "val", "test")
HELD_OUT = ("val", "test")
_WORDS = {
    **dict.fromkeys(("train", "training", "trainset"), "train"),
    **dict.fromkeys(("val", "valid", "valset", "validation", "eval", "evaluation"), "val"),
    **dict.fromkeys(("test", "testing", "testset", "holdout", "heldout"), "test"),
}
# Words of folder names that say what a folder holds: test_images and labels-val are splits, crash_test is none
_CONTENTS = frozenset(
    f"{word}{end}"
    for word in ("annotation", "dataset", "data", "image", "img", "label", "photo", "set", "split", "txt", "xml")
    for end in ("", "s")
)
INSTANCES = ".instances.json"  # of the records of a split: what the converter wrote, in COCO's format
_OF_VISDRONE = re.compile(r"VisDrone20\d\d-DET-(train|val|test)(-dev|-challenge)?")
_YEAR = re.compile(r"20\d\d$")
_LETTERS_AND_DIGITS = re.compile(r"[^A-Za-z0-9]+")


def split_of_each(names: Sequence[str], splits: Sequence[str | None], *, where: str) -> list[str]:
    """Return the split of each named file; "" for all if no name has a split.

    Where only val or test is named, the other files are train.

    Raises:
        InputError: starting with `where`, if some files are in train and others in no split.
    """
    if not any(splits):
        return [""] * len(splits)
    without = [name for name, split in zip(names, splits, strict=True) if not split]
    if without and "train" in splits:
        raise InputError(
            f"{where}: {len(without)} of {len(names)}, such as {without[0]}, are in no split named train, val or test; "
            "expected all or none"
        )
    return [split or "train" for split in splits]


def names_by_split(names: Sequence[str], splits: Iterable[str | None], *, where: str) -> dict[str, list[str]]:
    """Return the names of each split; `splits` names that of each.

    Raises:
        InputError: as `split_of_each` does.
    """
    by_split: dict[str, list[str]] = {}
    for name, split in zip(names, split_of_each(names, [*splits], where=where), strict=True):
        by_split.setdefault(split, []).append(name)
    return by_split or {"": []}


def split_of_word(word: str) -> str | None:
    """Return the split that a word such as train2017 or Validation names, or None."""
    return _WORDS.get(_YEAR.sub("", word.lower()))


def split_of_folder(name: str) -> str | None:
    """Return the split that a folder such as test, val2017 or test_images names, or None."""
    words = [word for word in _LETTERS_AND_DIGITS.split(_OF_VISDRONE.sub(r"\1", name)) if word]
    telling = [word for word in words if word.lower() not in _CONTENTS and not _YEAR.fullmatch(word)]
    return split_of_word(telling[0]) if len(telling) == 1 else None


def split_of_folders(path: str) -> str | None:
    """Return the split that the innermost folder of a relative path names, or None."""
    return next(filter(None, map(split_of_folder, reversed(PurePosixPath(path).parts[:-1]))), None)


def split_of_file(path: str) -> str | None:
    """Return the split that a relative path names, by a word of its file name, else by its folders, or None."""
    words = _LETTERS_AND_DIGITS.split(PurePosixPath(path).name)
    return next(filter(None, map(split_of_word, words)), None) or split_of_folders(path)


def split_of_root(folder: str | Path) -> str | None:
    """Return the split of a folder that lies beside the folder of another split, such as photos/test, or None.

    photos/test/images is one, too. A folder of this name that stands alone may hold anything.
    """
    path = Path(folder).resolve()
    path = path if path.is_dir() else path.parent  # a file of labels
    for place in (path, path.parent):
        split = split_of_folder(place.name)
        if split is not None:
            try:
                others = {split_of_folder(other.name) for other in place.parent.iterdir() if other.is_dir()}
            except OSError:  # a folder whose parent may not be listed
                return None
            return split if others - {split, None} else None
        if place.name.lower() not in _CONTENTS:
            return None
    return None


def splits_by_name(data: AnnotatedDataSet, splits: Sequence[str | None]) -> dict[str, AnnotatedDataSet]:
    """Return the splits of a data set, whose images are in these `splits`, or all of it as the split "".

    Findings of the reader that belong to no split are the first split's.

    Raises:
        InputError: as `split_of_each` does.
    """
    if not data.images:  # all are skipped
        return {"": data}
    assigned = split_of_each([image.file_name for image in data.images], splits, where=data.source)
    images: dict[str, list[AnnotatedImage]] = {split: [] for split in SPLITS if split in assigned}
    for image, split in zip(data.images, assigned, strict=True):
        images.setdefault(split, []).append(image)
    first, *others = images

    def findings_of(findings: Sequence[ReportEntry], split: str) -> list[ReportEntry]:
        return [
            replace(finding, split=None)
            for finding in findings
            if (finding.split if finding.split in images else first) == split
        ]

    skipped = {split: findings_of(data.skipped, split) for split in images}
    boxes = {
        split: sum(len(image.objects) for image in images[split])
        + sum(finding.kind == "box" for finding in skipped[split])
        for split in images
    }
    boxes[first] = data.listed_boxes - sum(boxes[split] for split in others)  # and those of images that are not listed
    return {
        split: replace(
            data,
            images=images[split],
            listed_boxes=boxes[split],
            skipped=skipped[split],
            noted=findings_of(data.noted, split),
        )
        for split in images
    }


def without_held_out(by_split: dict[str, AnnotatedDataSet]) -> dict[str, AnnotatedDataSet]:
    """Return the splits, without those images of train that another split has, and without train if none is left."""
    others = {split: data for split, data in by_split.items() if split != "train"}
    held_out, train = {image.file_name for data in others.values() for image in data.images}, by_split["train"]
    images = [image for image in train.images if image.file_name not in held_out]
    boxes = sum(len(image.objects) for image in train.images if image.file_name in held_out)
    rest = {"train": replace(train, images=images, listed_boxes=train.listed_boxes - boxes)} if images else {}
    return rest | others


def splits_of_records(
    record_folders: Sequence[str], images: Sequence[AnnotatedImage], image_folder: str | Path
) -> dict[str, str]:
    """Return the split of each image of earlier conversions by its file name, also by a new name of the same file.

    Args:
        record_folders: folders of records; the split in the last one that has an image counts.
        images: images, of which new names are looked up by the content of their files.
        image_folder: their folder.

    Raises:
        InputError: a folder has no records of create_tfrecord.py.
    """
    splits, split_of_content = dict[str, str](), dict[str, str]()
    for folder in record_folders:
        if not (files := [split for split in SPLITS if Path(folder, f"{split}{INSTANCES}").is_file()]):
            raise InputError(f"{folder}: has no {SPLITS[0]}{INSTANCES}; expected records of create_tfrecord.py")
        for split in reversed(files):  # a file that is in two counts as one of train, which the model has seen
            path = f"{folder}/{split}{INSTANCES}"
            try:
                for image in read_json(path)["images"]:
                    splits[image["file_name"]] = split
                    split_of_content[image.get("sha256", "")] = split
            except (LookupError, TypeError, AttributeError) as error:
                raise InputError(f"{path}: has no images as create_tfrecord.py writes them") from error
    renamed = {}
    for image in read_ahead([image for image in images if image.file_name not in splits], image_folder):
        try:
            digest = hashlib.sha256(read_image_file(Path(image_folder, image.file_name))).hexdigest()
        except OSError:  # the conversion reports it
            continue
        if digest in split_of_content:
            renamed[image.file_name] = split_of_content[digest]
    return splits | renamed
