"""The operation of eval.py and of `efficientdet.evaluate`: turn flags into a configuration and run it."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

from dataset.class_files import parse_class_names
from dataset.class_names import ClassNames, read_class_names
from dataset.conversion.class_numbering import named_classes
from dataset.conversion.conversion_config import ConversionConfig
from dataset.conversion.format_recognition import FORMATS
from dataset.files.untrusted_values import error_context
from efficientdet.checkpoints.checkpoint_classes import classes_beside
from efficientdet.checkpoints.checkpoint_flags import existing_checkpoint
from efficientdet.checkpoints.description import Description, read_description
from efficientdet.configuration.flag_definitions import (
    FLAGS,
    FlagValues,
    checked_overrides,
    define_class_names_flag,
    define_machine_flags,
    define_model_flags,
    define_runtime_flag,
    finish_flags,
    machine_settings,
    model_config,
    runtime_settings,
    typed_name,
)
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
    writable_file,
    writable_folder,
)
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.evaluation.image_folder import read_images, records_of_images
from efficientdet.exports.formats import format_of
from efficientdet.operations.results import EvaluationResult
from efficientdet.prediction.open_model import open_model
from program_support.checked_fields import Count, CountOrZero
from program_support.command_line import Define
from program_support.errors import InputError
from program_support.field_flags import define_flag, define_flags_of

_FLAGS_OF_CHECKPOINTS = (
    "amp",
    "class_names",
    "hparams",
    "int8_images",
    "model_name",
    "precision",
    "store_thresholds",
    "use_xla",
    "weights",
)


def define_flags(values: FlagValues = FLAGS) -> None:
    """Define the flags of eval.py: the reference's and additional ones."""
    define = Define(values)
    define_model_flags(values)
    define_machine_flags(values)
    define_runtime_flag(values)
    define_class_names_flag(values)
    define.string("val_file_pattern", None, "Glob pattern of the TFRecords to evaluate on.")
    define.string("images", None, "Folder of labeled images to evaluate on, instead of --val_file_pattern.")
    define.string(
        "annotations",
        None,
        "File or folder of the labels of --images, in any format that create_tfrecord.py reads. Default: the folder of "
        "the images.",
    )
    define.enum("format", "auto", ["auto", *FORMATS], "Format of the labels; auto detects it from the content.")
    define_flags_of(
        ConversionConfig,
        {"max_bad_fraction": "Maximum fraction of --images, and of their boxes, that may be skipped as unusable."},
        values,
    )
    define.string("val_json_file", None, "COCO JSON file with the ground truth. Default: the boxes in the records.")
    define.string(
        "ckpt_path",
        None,
        "Checkpoint to evaluate: a prefix or a folder, written by this project, google/automl or NVIDIA; or a file of "
        "export.py (.onnx, .xml or .tflite) or a SavedModel.",
    )
    define.string(
        "results",
        None,
        "JSON file with detections of any program in COCO's results format, evaluated instead of a checkpoint. Images "
        "are found by image_id or file name.",
    )
    define_flag("batch_size", Count, 8, "Batch size per process, or per device under KERAS_BACKEND=jax.", values)
    define_flag("eval_samples", CountOrZero, 0, "Number of records to evaluate, from the first; 0: all.", values)
    define.enum(
        "weights",
        "averaged",
        ["averaged", "raw"],
        "Weights to use if the checkpoint has both: the moving average, or the raw weights.",
    )
    define.bool("enable_map_parallelization", True, "Read and decode images in parallel.")
    define.string("testdev_dir", None, "Output folder for the detections as a COCO test-dev submission.")
    define.string("output_json", None, "Output file for the COCO measures as JSON.")
    define.string(
        "report",
        None,
        "Output folder for report.html and report.json: precision-recall curves, confusion "
        "matrix, types of errors and the worst images.",
    )
    define.bool(
        "store_thresholds",
        False,
        "Store the score threshold with the best F1 of each class in the checkpoint, for "
        "infer.py, serve.py and export.py. Evaluations by train.py always do so.",
    )
    finish_flags("eval", values)


def main(values: FlagValues = FLAGS) -> EvaluationResult | None:
    """Evaluate as the flags state. Return None on every process except the first."""
    overrides = checked_overrides(values=values)
    json_file = existing_file(values.val_json_file, "val_json_file")
    others = _other_detections(values)
    prefix = None if others else existing_checkpoint(required(values.ckpt_path, "ckpt_path"), "ckpt_path")
    class_names, name, opened_records = _data_set(values, prefix, json_file=json_file)
    runtime: dict[str, Any] = {} if others else runtime_settings(values)
    output_json = writable_file(values.output_json, "output_json")
    testdev_dir = writable_folder(values.testdev_dir, "testdev_dir") if values.testdev_dir else None
    report = writable_folder(values.report, "report") if values.report is not None else None
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint
    from efficientdet.evaluation.other_detections import OtherDetections

    with opened_records as records, report_out_of_memory(batch_size=values.batch_size):
        measures = evaluate_checkpoint(
            EvaluationConfig(
                model=model_config(
                    prefix, overrides, values=values, class_names=class_names, **runtime, **machine_settings(values)
                ),
                records=records,
                data=name,
                json_file=json_file,
                batch_size=values.batch_size,
                samples=values.eval_samples,
                num_threads=0 if values.enable_map_parallelization else 1,
                testdev_dir=testdev_dir,
                output_json=output_json,
                report=report,
                store_thresholds=values.store_thresholds,
                others=OtherDetections(**others) if others else None,
            )
        )
    if measures is None:
        return None
    return EvaluationResult(
        numbers=measures.numbers,
        mask_numbers=measures.mask_numbers,
        class_ap=measures.class_ap,
        images=measures.images,
        detections=measures.detections,
        score_thresholds=measures.score_thresholds,
        report=Path(report, "report.html") if report else None,
    )


def _data_set(
    values: FlagValues, prefix: str | None, *, json_file: str | None
) -> tuple[ClassNames, str | None, contextlib.AbstractContextManager[tuple[str, ...]]]:
    """Return the classes, a name for the report, and the records, which for --images exist only while in use."""
    if values.results and json_file and not (values.val_file_pattern or values.images or values.report):
        return read_class_names(json_file), None, contextlib.nullcontext(())
    if not values.val_file_pattern and not values.images:
        raise InputError("--val_file_pattern is missing; expected records, or --images=FOLDER and --annotations=LABELS")
    if values.images and (values.val_file_pattern or json_file):
        raise InputError("--images: expected without --val_file_pattern and --val_json_file; --annotations has labels")
    description = read_description(prefix) if prefix else None
    of_checkpoint = _class_names_of(prefix, description, values) if prefix else None
    if not values.images:
        records = records_of(values.val_file_pattern, "val_file_pattern")
        names = class_names_for(records, json_file=json_file, of_checkpoint=of_checkpoint)
        return names, None, contextlib.nullcontext(records)
    images = read_images(
        values.images,
        values.annotations,
        label_format=values.format,
        class_names=of_checkpoint,
        description=description,
    )
    converted = records_of_images(images, max_bad_fraction=values.max_bad_fraction)
    return named_classes(images.data), images.name, converted


def _class_names_of(prefix: str, description: Description | None, values: FlagValues) -> ClassNames | None:
    """Return the classes of a checkpoint before it is read; None if neither it nor a flag or file names them."""
    if description is not None:
        return ClassNames.from_categories(description.categories)
    if values.class_names:
        with error_context("--class_names:"):
            return parse_class_names(values.class_names)
    stated = classes_beside(prefix)
    return stated and stated.names


def _other_detections(values: FlagValues) -> dict[str, Any] | None:
    """Return the fields of `OtherDetections`, None for a checkpoint.

    Raises:
        InputError: for flags without effect.
    """
    path, exported = values.ckpt_path, format_of(values.ckpt_path)
    if values.results and path:
        raise InputError(
            f"--results={values.results} and --{typed_name('ckpt_path')}={path}: expected only one of them"
        )
    if not values.results and exported is None:
        return None
    runs = ("runtime",) if exported and exported.runtimes and not values.results else ()
    for flag in (*_FLAGS_OF_CHECKPOINTS, "runtime"):
        if values[flag].present and flag not in runs:
            raise InputError(f"{values.results or path}: is evaluated as it is, without --{flag}")
    if values.results:
        return {"path": existing_file(values.results, "results"), "kind": "results"}
    runtime = "keras"
    if exported and exported.runtimes:
        existing_file(path, "ckpt_path")
        runtime = exported.runtime_of(path, values.runtime, asked_by=f"--{typed_name('ckpt_path')}")
    load = partial(open_model, ModelConfig(ckpt_path=path, runtime=runtime))
    return {"path": path, "kind": "exported file", "load": load}
