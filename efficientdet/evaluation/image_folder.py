"""Labeled images in any format as records for one evaluation, in a folder that is removed at its end."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.any_format import read_labels, recognize
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.conversion_report import summary_lines
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.shards import convert
from dataset.files.image_files import image_folder
from dataset.files.pixel_values import FULL_RANGE
from efficientdet.checkpoints.description import Description
from efficientdet.configuration.flag_paths import class_names_for, records_of
from efficientdet.devices.distributed import launched_by
from efficientdet.families.registry import hyperparameters_of, model_names
from efficientdet.options.model import EvaluatedData
from program_support.errors import InputError, printable

_MEASURED_FIRST = ("test", "val", "", "train")


def open_data(
    options: EvaluatedData, *, json_file: str | None, class_names: ClassNames | None, description: Description | None
) -> tuple[ClassNames, str | None, contextlib.AbstractContextManager[tuple[str, ...]]]:
    """Return the classes, a name for the report, and the records, which for --images exist only while in use.

    Args:
        options: records or images.
        json_file: the ground truth of records.
        class_names: classes of the checkpoint; None: unknown.
        description: of the checkpoint, for its masks and its white level.

    Raises:
        InputError: for neither or both of records and images, and for invalid ones.
    """
    if not options.val_file_pattern and not options.images:
        raise InputError("--val_file_pattern is missing; expected records, or --images=FOLDER and --annotations=LABELS")
    if options.images and (options.val_file_pattern or json_file):
        raise InputError("--images: expected without --val_file_pattern and --val_json_file; --annotations has labels")
    if not options.images:
        records = records_of(options.val_file_pattern, "val_file_pattern")
        names = class_names_for(records, json_file=json_file, of_checkpoint=class_names)
        return names, None, contextlib.nullcontext(records)
    return _read_images(options, class_names=class_names, description=description)


def _read_images(
    options: EvaluatedData, *, class_names: ClassNames | None, description: Description | None
) -> tuple[ClassNames, str, contextlib.AbstractContextManager[tuple[str, ...]]]:
    """Read the labels of the test split, else of the validation split, else of all images; does not import TensorFlow.

    `class_names` are the classes of the checkpoint, whose category ids the labels get; None: unknown. `description`
    tells whether it learns masks, and its white level.

    Raises:
        InputError: for invalid labels and for a class that the checkpoint lacks.
    """
    if launched_by(os.environ)[1] > 1:
        raise InputError("--images: needs a single process; convert the images (dataset/create_tfrecord.py)")
    folder = image_folder(options.images)
    label_path = options.annotations or folder
    labels = recognize(label_path, label_format=options.format)
    print(labels.reason)
    images = ImageFolder(folder)
    images.report_unread()
    read = partial(read_labels, labels, label_path, images, label_map=class_names)
    by_split: dict[str, AnnotatedDataSet] = {}
    if _learns_masks(description):
        with contextlib.suppress(InputError):  # labels without outlines: boxes are evaluated
            by_split = read(with_masks=True)
    with_masks = bool(by_split)
    by_split = by_split or read(with_masks=False)
    split = next(name for name in _MEASURED_FIRST if name in by_split)
    what = f"the {split} split of {folder}" if split else folder
    print(f"evaluates {len(by_split[split].images)} images: {what}")
    value_range = description.value_range if description else FULL_RANGE
    config = ConversionConfig(
        image_folder=folder,
        output_prefix="images",  # in the folder that exists while in use
        num_shards=1,
        processes=1,
        max_bad_fraction=options.max_bad_fraction,
        include_masks=with_masks,
        black_level=value_range.black,
        white_level=value_range.white,
    )
    return named_classes(by_split[split]), what, _converted(by_split[split], config)


def _learns_masks(description: Description | None) -> bool:
    if description is None or description.model_name not in model_names():
        return False
    return hyperparameters_of(description.model_name, {}).mask_size > 0


@contextlib.contextmanager
def _converted(data: AnnotatedDataSet, config: ConversionConfig) -> Iterator[tuple[str, ...]]:
    """Yield records of the images, and print what their conversion changed or skipped.

    Raises:
        InputError: the folder has no usable images or annotations.
    """
    from efficientdet.devices.runtime import start_runtime

    start_runtime(owns_process=False)  # decoding would allocate the memory of every GPU
    with tempfile.TemporaryDirectory(prefix="evaluation-") as folder:
        config = replace(config, output_prefix=str(Path(folder, "images")))
        for line in summary_lines(convert(data, config, log=lambda line: None), data.class_names):
            print(printable(line))
        yield (str(config.shard_path(0)),)
