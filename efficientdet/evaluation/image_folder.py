"""Labeled images in any format as records for one evaluation, in a folder that is removed at its end."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.conversion_report import summary_lines
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.format_recognition import recognize
from dataset.conversion.label_splits import read_labels
from dataset.conversion.sharding.shards import convert
from dataset.files.image_files import image_folder
from dataset.files.pixel_values import FULL_RANGE, ValueRange
from efficientdet.checkpoints.description import Description
from efficientdet.configuration.flag_paths import class_names_for, records_of
from efficientdet.devices.distributed import launched_by
from efficientdet.families.registry import hyperparameters_of, model_names
from efficientdet.options.model import EvaluatedData
from program_support.errors import InputError, printable

_MEASURED_FIRST = ("test", "val", "", "train")


@dataclass(frozen=True, kw_only=True)
class EvaluatedImages:
    """The images of one split with their labels; `name` describes them in a report."""

    name: str
    folder: str
    data: AnnotatedDataSet
    with_masks: bool
    value_range: ValueRange


def open_data(
    options: EvaluatedData, *, json_file: str | None, class_names: ClassNames | None, description: Description | None
) -> tuple[ClassNames, str | None, contextlib.AbstractContextManager[tuple[str, ...]]]:
    """Return the classes, a name for the report, and the records, which for --images exist only while in use.

    Args:
        options: records or images.
        json_file: the ground truth of records.
        class_names: classes of the checkpoint; None: unknown.
        description: of the checkpoint, see `read_images`.

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
    images = read_images(
        options.images,
        options.annotations,
        label_format=options.format,
        class_names=class_names,
        description=description,
    )
    converted = records_of_images(images, max_bad_fraction=options.max_bad_fraction)
    return named_classes(images.data), images.name, converted


def read_images(
    folder: str,
    annotations: str | None,
    *,
    label_format: str,
    class_names: ClassNames | None,
    description: Description | None,
) -> EvaluatedImages:
    """Read the labels of the test split, else of the validation split, else of all images; does not import TensorFlow.

    `class_names` are the classes of the checkpoint, whose category ids the labels get; None: unknown. `description`
    tells whether it learns masks, and its white level.

    Raises:
        InputError: for invalid labels and for a class that the checkpoint lacks.
    """
    if launched_by(os.environ)[1] > 1:
        raise InputError("--images: needs a single process; convert the images (dataset/create_tfrecord.py)")
    folder = image_folder(folder)
    label_path = annotations or folder
    labels = recognize(label_path, label_format=label_format)
    print(labels.reason)
    images = ImageFolder(folder)
    images.report_unread()

    def parts(*, with_masks: bool) -> dict[str, AnnotatedDataSet]:
        return read_labels(labels, label_path, images, with_masks=with_masks, label_map=class_names)

    by_split: dict[str, AnnotatedDataSet] = {}
    if _learns_masks(description):
        with contextlib.suppress(InputError):  # labels without outlines: boxes are evaluated
            by_split = parts(with_masks=True)
    with_masks = bool(by_split)
    by_split = by_split or parts(with_masks=False)
    split = next(name for name in _MEASURED_FIRST if name in by_split)
    what = f"the {split} split of {folder}" if split else folder
    print(f"evaluates {len(by_split[split].images)} images: {what}")
    return EvaluatedImages(
        name=what,
        folder=folder,
        data=by_split[split],
        with_masks=with_masks,
        value_range=description.value_range if description else FULL_RANGE,
    )


def _learns_masks(description: Description | None) -> bool:
    if description is None or description.model_name not in model_names():
        return False
    return hyperparameters_of(description.model_name, {}).mask_size > 0


@contextlib.contextmanager
def records_of_images(images: EvaluatedImages, *, max_bad_fraction: float) -> Iterator[tuple[str, ...]]:
    """Yield records of the images, and print what their conversion changed or skipped.

    Raises:
        InputError: the folder has no usable images or annotations.
    """
    from efficientdet.devices.runtime import start_runtime

    start_runtime(owns_process=False)  # decoding would allocate the memory of every GPU
    with tempfile.TemporaryDirectory(prefix="evaluation-") as folder:
        config = ConversionConfig(
            image_folder=images.folder,
            output_prefix=str(Path(folder, "images")),
            num_shards=1,
            processes=1,
            max_bad_fraction=max_bad_fraction,
            include_masks=images.with_masks,
            black_level=images.value_range.black,
            white_level=images.value_range.white,
        )
        report = convert(images.data, config, log=lambda line: None)
        for line in summary_lines(report, images.data.class_names):
            print(printable(line))
        yield (str(config.shard_path(0)),)
