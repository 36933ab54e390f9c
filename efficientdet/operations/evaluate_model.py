"""The operation of eval.py and of `efficientdet.evaluate`: turn options into a configuration and run it."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from dataset.class_names import ClassNames, parse_class_names, read_class_names
from dataset.conversion.annotations import AnnotatedDataSet
from dataset.conversion.any_format import read_labels, recognize
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.conversion_report import summary_lines
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.shards import convert
from dataset.files.image_files import image_folder
from dataset.files.pixel_values import FULL_RANGE
from dataset.files.untrusted_values import error_context
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.checkpoints.checkpoint_classes import classes_beside
from efficientdet.checkpoints.description import Description, read_description
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
    typed_name,
    writable_file,
    writable_folder,
)
from efficientdet.configuration.model_config import (
    ModelConfig,
    checked_overrides,
    first_given,
    model_config,
    runtime_settings,
)
from efficientdet.devices.distributed import launched_by
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import exported_model, format_of
from efficientdet.families.registry import hyperparameters_of, model_names
from efficientdet.operations.results import EvaluationResult
from efficientdet.options.evaluate import EvaluateOptions
from efficientdet.options.model import CHECKPOINT_ONLY, EvaluatedData
from efficientdet.prediction.open_model import open_model
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import claimed_outputs
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


_FILES_OF_FOLDERS = {  # by the flag of the folder
    "testdev_dir": (TESTDEV_FILE_NAME,),
    "report": ("report.html", "report.json"),
    "suspects": ("suspects.html", "suspects.json", "proposed.json"),
}


def evaluate(options: EvaluateOptions) -> EvaluationResult | None:
    """Return the COCO measures of the detector that the options name; None on every process except the first."""
    overrides = checked_overrides(options)
    json_file = existing_file(options.val_json_file, "val_json_file")
    open_file = _opener(options)
    is_checkpoint = not options.results and open_file is None
    prefix = existing_checkpoint(required(options.ckpt_path, "ckpt_path"), "ckpt_path") if is_checkpoint else None
    class_names, name, opened_records = _data_set(options, prefix, json_file=json_file)
    runtime: dict[str, Any] = runtime_settings(options) if is_checkpoint else {}
    writable_file(options.output_json, "output_json")
    outputs: list[str | Path | None] = [options.output_json]
    for flag, names in _FILES_OF_FOLDERS.items():
        if (folder := getattr(options, flag)) is not None:
            outputs += [Path(writable_folder(folder, flag), name) for name in names]
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint

    with claimed_outputs(*outputs), opened_records as records, report_out_of_memory(batch_size=options.batch_size):
        resolved: dict[str, Any] = {
            "val_json_file": json_file,
            "model": model_config(prefix, overrides, options, class_names=class_names, **runtime),
            "records": records,
            "data": name,
            "open_file": open_file,
        }
        measures = evaluate_checkpoint(EvaluationConfig(**{**vars(options), **resolved}))
    if measures is None:
        return None
    numbers: dict[str, Any] = {field.name: getattr(measures, field.name, None) for field in fields(EvaluationResult)}
    pages = ("report", "suspects")
    numbers |= {flag: Path(folder, f"{flag}.html") for flag in pages if (folder := getattr(options, flag))}
    return EvaluationResult(**numbers)


def _data_set(
    options: EvaluateOptions, prefix: str | None, *, json_file: str | None
) -> tuple[ClassNames, str | None, contextlib.AbstractContextManager[tuple[str, ...]]]:
    """Return the classes, a name for the report, and the records, which for --images exist only while in use."""
    if (
        options.results
        and json_file
        and not (options.val_file_pattern or options.images or options.report or options.suspects)
    ):
        return read_class_names(json_file), None, contextlib.nullcontext(())
    description = read_description(prefix) if prefix else None
    of_checkpoint = _class_names_of(prefix, description, options) if prefix else None
    return open_data(options, json_file=json_file, class_names=of_checkpoint, description=description)


def _class_names_of(prefix: str, description: Description | None, options: EvaluateOptions) -> ClassNames | None:
    """Return the classes of a checkpoint before it is read; None if neither it nor a flag or file names them."""
    if description is not None:
        return description.class_names
    if options.class_names:
        with error_context("--class_names:"):
            return parse_class_names(options.class_names)
    stated = classes_beside(prefix)
    return stated and stated.names


def _opener(options: EvaluateOptions) -> Callable[[], Any] | None:
    """Return the function that opens an exported file, None for a checkpoint and for results.

    Raises:
        InputError: for flags without effect, and a missing file.
    """
    path, exported = options.ckpt_path or "", format_of(options.ckpt_path)
    if options.results and path:
        raise InputError(
            f"--results={options.results} and --{typed_name('ckpt_path')}={path}: expected only one of them"
        )
    if not options.results and exported is None:
        return None
    no_runtime = () if exported and exported.runtimes and not options.results else ("runtime",)
    if flag := first_given(options, (*CHECKPOINT_ONLY, "store_thresholds", *no_runtime)):
        raise InputError(f"{options.results or path}: is evaluated as it is, without --{flag}")
    if options.results:
        existing_file(options.results, "results")
        return None
    model = ModelConfig(ckpt_path=path)
    if exported and exported.runtimes:
        model = exported_model(exported, path, options.runtime, "ckpt_path")
    return partial(open_model, model)
