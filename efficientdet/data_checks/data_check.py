"""The data check: read images and labels, examine them, print the findings and write the page."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.format_recognition import recognize
from dataset.files.file_kinds import FormatName
from dataset.records.labeled_records import LabeledImages
from efficientdet.configuration.flag_paths import class_names_for
from efficientdet.families.hyperparameters import Hyperparameters
from program_support.checked_fields import Count, checked
from program_support.progress import Progress

if TYPE_CHECKING:
    from efficientdet.data_checks.examination import Examination


@checked
class DataCheckConfig:
    """Configuration of a data check: records, or images with labels.

    records: "training" and, if given, "validation": paths of TFRecords. Empty: `images`, a folder, with the labels
    `annotations` (None: in that folder) and those of validation, `val_annotations` (None: as `annotations` splits
    them).
    images_read: how many images of each split are decoded. output_dir: for doctor.html and doctor.json, None: neither.
    """

    hparams: Hyperparameters
    fixed: frozenset[str] = frozenset()  # hyperparameters for which no other values are suggested
    records: Mapping[str, tuple[str, ...]]
    images: str | None
    annotations: str | None
    val_annotations: str | None
    label_format: Annotated[FormatName, "format"] = "auto"
    images_read: Count = 2000
    output_dir: str | None


def read_splits(config: DataCheckConfig) -> dict[str, LabeledImages]:
    """Return the training images and, if given, the validation images.

    Raises:
        InputError: for unreadable files.
    """
    every = tuple(path for paths in config.records.values() for path in paths)
    return {name: _read_records(paths, others=every) for name, paths in config.records.items()} or _read_annotations(
        config
    )


def check_data(splits: Mapping[str, LabeledImages], config: DataCheckConfig) -> "tuple[Examination, Path | None]":
    """Examine what `read_splits` returned; return the findings and the path of the page, if there is one."""
    from efficientdet.data_checks.check_report import write_page
    from efficientdet.data_checks.examination import examine
    from efficientdet.data_checks.findings import as_hparams

    total = sum(min(len(images), config.images_read) for images in splits.values())
    with Progress("doctor", total=total, noun="image", slow_start=True) as bar:
        examination = examine(
            splits,
            config.hparams,
            fixed=config.fixed,
            images_read=config.images_read,
            done=lambda: bar.advance(images=1),
        )
    for finding in examination.findings:
        print(f"{finding.level:8} {finding.line}")
    if not examination.warnings:
        print("no problems found")
    if examination.settings:
        print(f"suggested: --hparams={as_hparams(examination.settings)}")
    page = write_page(config.output_dir, examination) if config.output_dir else None
    print(f"wrote    {page}" if page else "with --output_dir=FOLDER a page shows the images")
    return examination, page


def _read_records(paths: tuple[str, ...], *, others: tuple[str, ...]) -> LabeledImages:
    from dataset.conversion.conversion_report import left_out_at_conversion
    from dataset.records.labeled_records import labeled_records
    from dataset.records.record_index import index_records

    names = class_names_for(paths, json_file=None, json_flag=None, other_records=others)
    images = labeled_records(index_records(paths), names)
    boxes_left_out, images_left_out = left_out_at_conversion(paths)
    return replace(images, left_out=[*images.left_out, *boxes_left_out], images_left_out=images_left_out)


def _read_annotations(config: DataCheckConfig) -> dict[str, LabeledImages]:
    """Return the splits of `annotations`, with `val_annotations` in place of its validation split."""
    from dataset.conversion.folder_files import ImageFolder
    from dataset.conversion.label_splits import read_labels
    from dataset.conversion.labeled_annotations import labeled_annotations
    from dataset.files.image_files import image_folder

    folder = image_folder(config.images)
    images = ImageFolder(folder)
    images.report_unread()

    def labeled_splits(path: str) -> dict[str, AnnotatedDataSet]:
        labels = recognize(path, label_format=config.label_format)
        print(labels.reason)
        return read_labels(labels, path, images, with_masks=False, label_map=None)

    by_split = labeled_splits(config.annotations or folder)
    if config.val_annotations:
        by_split["val"] = next(iter(labeled_splits(config.val_annotations).values()))
    if not {"", "train"} & {*by_split}:
        print(f"split: {' and '.join(by_split)} only; examined as training images")
        by_split["train"] = by_split.pop("test" if "test" in by_split else "val")
    named = {"training": by_split.get("", by_split.get("train")), "validation": by_split.get("val")}
    return {name: labeled_annotations(data, folder) for name, data in named.items() if data is not None}
