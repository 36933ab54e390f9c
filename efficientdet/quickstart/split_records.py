"""The records of a quick start by split: train, val and test."""

import glob
from pathlib import Path
from typing import Any

from dataset.class_names import class_names_of_records
from dataset.files.bounded_files import read_json
from dataset.records.labeled_records import LabeledImages, labeled_records
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records


def labeled_images(pattern: str, *, most: int | None = None) -> LabeledImages:
    """Return the images of the records, or the first `most`."""
    records = expand_glob(pattern)
    index = index_records(records)
    names = class_names_of_records(records)
    assert names is not None
    return labeled_records(index, names, range(len(index))[:most])


def instances(folder: Path, split: str) -> dict[str, Any]:
    """Return the images, objects and classes of the records of a split in COCO's format, as the conversion wrote them.

    Raises:
        InputError: the file is missing or damaged.
    """
    return read_json(str(folder / "records" / f"{split}.instances.json"))


def image_count(pattern: str) -> int:
    """Return the number of images of the records."""
    return len(index_records(sorted(glob.glob(pattern))))


def records_of(folder: Path, split: str) -> str | None:
    """Return the pattern of the records of train, val or test; None if there are none."""
    pattern = records_pattern(folder, split)
    return pattern if glob.glob(pattern) else None


def records_pattern(folder: Path, split: str) -> str:
    """Return the pattern of the records of train, val or test."""
    return f"{glob.escape(str(folder))}/records/{split}-*"
