"""Convert labels of COCO, VOC, YOLO, Open Images, CVAT, labelme, Label Studio, CSV and others to TFRecords.

    python dataset/create_tfrecord.py --images=photos --annotations=labels --output_dir=records

The format is detected from the content and printed. Existing train, val and test splits are kept. Without a val split,
--val_fraction of the images is used for validation.
"""

import contextlib
import hashlib
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

if __name__ == "__main__" and not __package__:  # run by path: sys.path[0] is dataset/, not the repository
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from program_support.startup import before_imports

if __name__ == "__main__":
    before_imports()

from dataset.class_names import read_class_file
from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, NothingUsable
from dataset.conversion.any_format import read_labels, recognize
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.conversion_flags import (
    conversion_config,
    convert_and_report,
    refuse_without_usable_objects,
)
from dataset.conversion.conversion_options import ConversionConfig, ConvertOptions
from dataset.conversion.conversion_report import Report, refusal_with_report
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.image_split import split_off
from dataset.conversion.named_splits import INSTANCES, SPLITS, splits_of_records
from dataset.conversion.shard_files import existing_shards
from dataset.conversion.shards import check_annotations, value_range_of
from dataset.files.image_files import IMAGE_SUFFIXES, image_folder
from dataset.files.pixel_values import ValueRange
from dataset.files.untrusted_values import listed, shown
from program_support import command_line
from program_support.command_line import define_flags_of, options_of_flags
from program_support.engines import LOCAL, connected
from program_support.errors import InputError
from program_support.remote_addresses import is_remote, storage


def define_flags() -> None:
    """Define the flags of this script."""
    define_flags_of(ConvertOptions)


def main() -> None:
    """Convert the data set that the flags describe."""
    convert_labels(options_of_flags(ConvertOptions))


def convert_labels(options: ConvertOptions, *, start: Callable[[], None] | None = None) -> dict[str, Report]:
    """Convert all splits and return the report of each. start: see `convert_and_report`."""
    options, remote_output = _with_local_folders(options)
    images = ImageFolder(image_folder(options.images))
    annotations = options.annotations or options.images
    label_map = read_class_file(options.label_map_json_path) if options.label_map_json_path else None
    labels = recognize(annotations, label_format=options.format)
    print(labels.reason, flush=True)
    images.report_unread()
    try:
        by_split = read_labels(labels, annotations, images, with_masks=options.include_masks, label_map=label_map)
    except NothingUsable as error:
        report = Report(skipped=[*error.findings])
        raise refusal_with_report(error, report, None, prefix=Path(options.output_dir, "train")) from error
    if options.labeled_classes:
        by_split = _with_unlabeled_classes(by_split, images, options.labeled_classes)
    _print_unused(by_split, images)
    configs = {split: replace(_config(split, options), remote_output=remote_output) for split in ("", *SPLITS)}
    for split, data in by_split.items():
        check_annotations(data, configs[split])
    refuse_without_usable_objects(
        [by_split[split] for split in ("", "train") if split in by_split] or by_split.values(),
        crowds_as_objects=options.crowds_as_objects,
        are_all_splits=True,
    )
    all_images = [image for data in by_split.values() for image in data.images]
    value_range = value_range_of(all_images, configs["train"])
    is_named = "val" in by_split
    by_split = _with_val(by_split, images, options=options, value_range=value_range)
    _warn_about_shared_images(by_split)
    _warn_about_images_of_train(by_split, options.output_dir, is_named=is_named)
    _refuse_other_splits(options.output_dir, by_split)

    def convert(split: str, data: AnnotatedDataSet) -> Report:
        print(f"\n{split}: {len(data.images)} images", flush=True)
        config = replace(configs[split], black_level=value_range.black, white_level=value_range.white)
        return convert_and_report(data, config, options, start=start)

    # one connection for all splits
    with contextlib.nullcontext() if options.engine == LOCAL else connected(options.engine):
        return {split: convert(split, data) for split, data in by_split.items()}


def _with_local_folders(options: ConvertOptions) -> tuple[ConvertOptions, str | None]:
    """Return options with local copies of remote labels and of a remote output folder, and the address of the latter.

    Images stay where they are.
    """
    labels, output = options.annotations or options.images, options.output_dir.rstrip("/")
    if is_remote(options.images):
        storage().forget_listings()
    if is_remote(labels):
        labels = storage().local_tree(labels, leave_out=IMAGE_SUFFIXES)
    if not is_remote(output):
        return replace(options, annotations=labels, output_dir=output), None
    return replace(options, annotations=labels, output_dir=storage().local_output(output)), output


def _config(split: str, options: ConvertOptions) -> ConversionConfig:
    return conversion_config(
        options,
        image_folder=options.images,
        output_prefix=str(Path(options.output_dir, split or "train")),
        include_masks=options.include_masks,
        keep_annotations=True,
    )


def _with_unlabeled_classes(
    by_split: dict[str, AnnotatedDataSet], images: ImageFolder, labeled_classes: Collection[str]
) -> dict[str, AnnotatedDataSet]:
    """Return the splits with a crowd box of the complete image for each class that its images are not labeled for.

    This is COCO's mark of a region whose objects are not labeled one by one. Evaluation then ignores detections of the
    class, and training does with `ignore_in_crowds`.
    """
    class_names = named_classes(next(iter(by_split.values())))
    if unknown := {*labeled_classes} - {*class_names.names}:
        raise InputError(
            f"--labeled_classes={','.join(labeled_classes)}: the data set has no class {listed(sorted(unknown))}; "
            f"expected some of {listed(class_names.names)}"
        )
    unlabeled = {number: name for number, name in class_names.by_id().items() if name not in labeled_classes}
    if not unlabeled:
        raise InputError(
            f"--labeled_classes={','.join(labeled_classes)}: are all classes of the data set; expected further ones in "
            "--label_map_json_path"
        )
    print(
        f"labeled classes: {listed(sorted(labeled_classes))}; marked as unlabeled in each image: "
        f"{listed(unlabeled.values())}"
    )

    def crowds(image: AnnotatedImage) -> list[AnnotatedObject]:
        if wrong := unlabeled.keys() & {one.category_id for one in image.objects}:
            name = shown(unlabeled[min(wrong)])
            raise InputError(f"{image.file_name}: has an object of {name}, which is not among --labeled_classes")
        size = (1, 1) if image.in_shares else images.size(image.file_name, upright=image.is_upright)
        if size is None:
            return []  # the conversion skips the image
        box = (0.0, 0.0, float(size[1]), float(size[0]))
        return [AnnotatedObject(category_id=number, box_xywh=box, is_crowd=True) for number in unlabeled]

    return {
        split: replace(
            data,
            images=[replace(image, objects=[*image.objects, *crowds(image)]) for image in data.images],
            listed_boxes=data.listed_boxes + len(unlabeled) * len(data.images),
            fingerprint=hashlib.sha256(f"{data.fingerprint} {sorted(unlabeled)}".encode()).hexdigest(),
        )
        for split, data in by_split.items()
    }


def _print_unused(by_split: dict[str, AnnotatedDataSet], images: ImageFolder) -> None:
    """Print the number of images that the labels do not name: some tools write no file for one without objects."""
    named = {image.file_name for data in by_split.values() for image in data.images}
    if unused := [name for name in images.names if name not in named]:
        print(
            f"not used: {len(unused)} of the {len(images.names)} images in {images.folder}, such as {unused[0]}, "
            "because the labels do not name them"
        )
    missing = named.difference(images.names)
    if len(unused) == len(missing) == 1:
        [absent] = missing
        first, last = (re.search(r"(\d+)\D*$", PurePosixPath(name).stem) for name in (absent, unused[0]))
        if first and last and int(last[1]) - int(first[1]) == len(images.names):
            print(
                f"warning: {absent} is missing and {unused[0]} is not labeled: if the files count from 1 and the "
                "labels from 0, each box is in the image after its own"
            )


def _with_val(
    by_split: dict[str, AnnotatedDataSet], images: ImageFolder, *, options: ConvertOptions, value_range: ValueRange
) -> dict[str, AnnotatedDataSet]:
    """Return the splits by name; split val off train if there is none and one is requested. Prints the result."""
    named = {split or "train": data for split, data in by_split.items()}
    if "train" not in named:
        print(
            f"split: {' and '.join(named)} only, as folders or files are named: no train records are written; to "
            "train on these images, rename that folder or file"
        )
    elif "val" in named or not options.val_fraction or not named["train"].images:
        print("split: from the data set" if "" not in by_split else "split: none, all images are train")
    else:
        named["train"], named["val"], alike = split_off(
            named["train"],
            images,
            fraction=options.val_fraction,
            seed=options.split_seed,
            group_by=options.group_by,
            value_range=value_range,
            earlier=splits_of_records(options.splits_of, named["train"].images, images.folder)
            if options.splits_of
            else None,
        )
        train_count, aside = (len(named[split].images) for split in ("train", "val"))
        together = f"{alike} possible near-duplicates are in the same split as the image that they resemble"
        if options.group_by:
            together = (
                f"{alike} images are in the same split as another of their group (--group_by={options.group_by}) or "
                "one that they resemble"
            )
        print(
            f"split: {aside} images for val, {train_count} for train, stratified by class (--val_fraction="
            f"{options.val_fraction:g}, --split_seed={options.split_seed}); {together}"
            + (f"; images of {', '.join(options.splits_of)} stay in their split" if options.splits_of else "")
        )
    return {split: named[split] for split in SPLITS if split in named}


def _warn_about_shared_images(by_split: dict[str, AnnotatedDataSet]) -> None:
    """Warn of images in both train and another split, as in ultralytics' coco128, whose val is its train."""
    trained = {image.file_name for image in by_split["train"].images} if "train" in by_split else set()
    for split, data in by_split.items():
        if split != "train" and (shared := sum(image.file_name in trained for image in data.images)):
            print(
                f"warning: {shared} of the {len(data.images)} images of {split} are also in train: metrics on them do "
                "not measure generalization"
            )


def _warn_about_images_of_train(by_split: dict[str, AnnotatedDataSet], folder: str, *, is_named: bool) -> None:
    """Warn of images of val that the records in the output folder, which are replaced, have in train."""
    if "val" not in by_split or not Path(folder, f"train{INSTANCES}").is_file():
        return
    earlier = splits_of_records([folder], [], "")
    if moved := [image.file_name for image in by_split["val"].images if earlier.get(image.file_name) == "train"]:
        print(
            f"warning: {len(moved)} images of val, such as {moved[0]}, were in train of the earlier records in "
            f"{folder}: a model that was trained on those has seen them"
            + ("" if is_named else f"; --splits_of={folder} keeps images in their split")
        )


def _refuse_other_splits(output_dir: str, by_split: dict[str, AnnotatedDataSet]) -> None:
    """Raise InputError for existing records of a split that this data set lacks; they would be mixed with it."""
    for split in SPLITS:
        if split not in by_split and (existing := existing_shards(str(Path(output_dir, split)))):
            raise InputError(
                f"{next(iter(existing.values()))} is left from another conversion, and these labels have no "
                f"{split}: delete those shards or choose another --output_dir"
            )


if __name__ == "__main__":
    define_flags()
    command_line.run(main, ends_at_once=True)
