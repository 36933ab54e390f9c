"""What a data check examines: the labels of records, or of images in any format."""

from dataclasses import replace

from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.format_recognition import recognize
from dataset.records.labeled_images import LabeledImages
from efficientdet.configuration.flag_paths import class_names_for, records_of
from efficientdet.options.doctor import ExamineOptions


def read_splits(options: ExamineOptions) -> dict[str, LabeledImages]:
    """Return the training images and, if given, the validation images; does not import TensorFlow.

    Raises:
        InputError: for unreadable files.
    """
    if not options.records:
        return _read_annotations(options)
    patterns = {"training": options.records, "validation": options.val_records}
    records = {name: records_of(pattern, "records") for name, pattern in patterns.items() if pattern}
    every = tuple(path for paths in records.values() for path in paths)
    return {name: _read_records(paths, others=every) for name, paths in records.items()}


def _read_records(paths: tuple[str, ...], *, others: tuple[str, ...]) -> LabeledImages:
    from dataset.conversion.conversion_report import left_out_at_conversion
    from dataset.records.labeled_records import labeled_records
    from dataset.records.record_index import index_records

    names = class_names_for(paths, json_file=None, json_flag=None, other_records=others)
    images = labeled_records(index_records(paths), names)
    boxes_left_out, images_left_out = left_out_at_conversion(paths)
    return replace(images, left_out=[*images.left_out, *boxes_left_out], images_left_out=images_left_out)


def _read_annotations(options: ExamineOptions) -> dict[str, LabeledImages]:
    """Return the splits of `annotations`, with `val_annotations` in place of its validation split."""
    from dataset.conversion.folder_files import ImageFolder
    from dataset.conversion.label_splits import read_labels
    from dataset.conversion.labeled_annotations import labeled_annotations
    from dataset.files.image_files import image_folder

    folder = image_folder(options.images)
    images = ImageFolder(folder)
    images.report_unread()

    def labeled_splits(path: str) -> dict[str, AnnotatedDataSet]:
        labels = recognize(path, label_format=options.format)
        print(labels.reason)
        return read_labels(labels, path, images, with_masks=False, label_map=None)

    by_split = labeled_splits(options.annotations or folder)
    if options.val_annotations:
        by_split["val"] = next(iter(labeled_splits(options.val_annotations).values()))
    if not {"", "train"} & {*by_split}:
        print(f"split: {' and '.join(by_split)} only; examined as training images")
        by_split["train"] = by_split.pop("test" if "test" in by_split else "val")
    named = {"training": by_split.get("", by_split.get("train")), "validation": by_split.get("val")}
    return {name: labeled_annotations(data, folder) for name, data in named.items() if data is not None}
