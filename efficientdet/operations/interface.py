"""The Python interface: each function runs the same operation as the program of its name.

Keyword arguments have the names of the program's flags. None stands for a flag that is not given. Every function prints
what the program prints, raises `efficientdet.InputError` (one line) where the program ends with one, and TypeError for
an unknown argument. No command line is parsed. Signal handlers and the random state of Python and NumPy are restored
after a call; the seeds of Keras and TensorFlow keep the values that the call has set.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dataset import create_tfrecord
from dataset.class_names import class_names_of_records
from dataset.conversion.conversion_options import ConvertOptions
from dataset.records.record_files import expand_glob
from efficientdet.operations import evaluate_model, examine_data, export_model, train_model
from efficientdet.operations.results import (
    ConversionResult,
    EvaluationResult,
    ExaminationResult,
    ExportResult,
    TrainingResult,
)
from efficientdet.operations.settings import call, folder_records, records_in
from efficientdet.options.doctor import ExamineOptions
from efficientdet.options.evaluate import EvaluateOptions
from efficientdet.options.export import ExportOptions
from efficientdet.options.train import TrainOptions

AnyPath = str | os.PathLike[str]
Hyperparameters = str | Mapping[str, Any]


def train(
    training_file_pattern: AnyPath,
    *,
    model_dir: AnyPath,
    val_file_pattern: AnyPath | None = None,
    model_name: str | None = None,
    hparams: Hyperparameters | None = None,
    num_epochs: int | None = None,
    max_minutes: float | None = None,
    batch_size: int | None = None,
    pretrained_ckpt: AnyPath | None = None,
    lr: float | None = None,
    precision: str | None = None,
    **flags: Any,
) -> TrainingResult:
    """Train a detector on TFRecords, as train.py does. A second call with the same model_dir resumes.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; a second Ctrl-C raises it without saving.

    Args:
        training_file_pattern: folder that `convert` wrote, or a glob of training records.
        model_dir: folder for checkpoints, log, report and the exported model.
        val_file_pattern: glob of validation records. Default: `val-*` of the folder, if it has any.
        model_name: one of the models. Default: efficientdet-d0.
        hparams: hyperparameters, such as {"image_size": 640}, or as text.
        num_epochs: length of the learning rate schedule. Default: 300.
        max_minutes: time budget; the schedule is shortened to it.
        batch_size: batch size per process, or per device under JAX. Default: as large as fits in memory.
        pretrained_ckpt: checkpoint or name of published weights to start from.
        lr: peak learning rate. Default: the model's.
        precision: float32, mixed_float16 or mixed_bfloat16.
        flags: further flags of train.py.

    Returns:
        Folder, COCO measures of the last evaluation, and the files.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of train.py.
    """
    val_file_pattern = folder_records(training_file_pattern, "val") if val_file_pattern is None else val_file_pattern
    return call(
        train_model.train,
        TrainOptions,
        "train",
        training_file_pattern=records_in(training_file_pattern, "train"),
        model_dir=model_dir,
        val_file_pattern=val_file_pattern and records_in(val_file_pattern, "val"),
        model_name=model_name,
        hparams=hparams,
        num_epochs=num_epochs,
        max_minutes=max_minutes,
        batch_size=batch_size,
        pretrained_ckpt=pretrained_ckpt,
        lr=lr,
        precision=precision,
        **flags,
    )


def evaluate(
    ckpt_path: AnyPath | None,
    val_file_pattern: AnyPath | None = None,
    *,
    val_json_file: AnyPath | None = None,
    batch_size: int | None = None,
    report: AnyPath | None = None,
    hparams: Hyperparameters | None = None,
    **flags: Any,
) -> EvaluationResult | None:
    """Evaluate a checkpoint, an exported file or results on TFRecords or on labeled images, as eval.py does.

    Args:
        ckpt_path: a prefix, a folder, published weights, or a file of `export`; None with results=FILE (COCO's format).
        val_file_pattern: folder that `convert` wrote, or a glob of records; None with results and val_json_file.
        val_json_file: COCO json to evaluate against. Default: the boxes in the records.
        batch_size: batch size per process, or per device under JAX. Default: 8.
        report: folder for report.html with curves, confusion and the worst images.
        hparams: hyperparameters that override those of the checkpoint.
        flags: further flags of eval.py, such as `images` and `annotations` instead of `val_file_pattern`.

    Returns:
        COCO measures; None in every process except the first.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of eval.py.
    """
    return call(
        evaluate_model.evaluate,
        EvaluateOptions,
        "evaluate",
        ckpt_path=ckpt_path,
        val_file_pattern=val_file_pattern and records_in(val_file_pattern, "val"),
        val_json_file=val_json_file,
        batch_size=batch_size,
        report=report,
        hparams=hparams,
        **flags,
    )


def export(
    ckpt: AnyPath,
    output_dir: AnyPath,
    *,
    formats: Sequence[str] | None = None,
    images: Sequence[AnyPath] | None = None,
    val_file_pattern: AnyPath | None = None,
    int8_images: Sequence[AnyPath] | None = None,
    hparams: Hyperparameters | None = None,
    **flags: Any,
) -> ExportResult:
    """Export a checkpoint to standalone files and compare each with it, as export.py does.

    Args:
        ckpt: a prefix, a folder or the name of published weights.
        output_dir: folder for the files, artifacts.md and artifacts.json.
        formats: such as ["onnx", "openvino"]. Default: those of export.py.
        images: image files or folders to compare on. Default: noise.
        val_file_pattern: folder that `convert` wrote or a glob of records, to measure AP on. Default: no AP.
        int8_images: training images or records for the calibration of int8 formats.
        hparams: hyperparameters that override those of the checkpoint.
        flags: further flags of export.py.

    Returns:
        The files, and the agreement of each with the checkpoint.

    Raises:
        InputError: a file, value or combination of values is invalid, or a package is missing.
        TypeError: a keyword is not a flag of export.py.
    """
    return call(
        export_model.export,
        ExportOptions,
        "export",
        ckpt=ckpt,
        output_dir=output_dir,
        formats=formats,
        images=images,
        val_file_pattern=val_file_pattern and records_in(val_file_pattern, "val"),
        int8_images=int8_images,
        hparams=hparams,
        **flags,
    )


def convert(
    images: AnyPath,
    output_dir: AnyPath = "records",
    *,
    annotations: AnyPath | None = None,
    format: str | None = None,
    val_fraction: float | None = None,
    **flags: Any,
) -> ConversionResult:
    """Convert labeled images of any supported format to TFRecords, as create_tfrecord.py does.

    Data sets of 1,000 images and more are converted by several processes. A script that calls this then needs
    `if __name__ == "__main__":`, as for every use of `multiprocessing`, or num_threads=1.

    Args:
        images: folder of the images.
        output_dir: folder for the records `train-*`, `val-*` and `test-*`.
        annotations: file or folder of the labels. Default: the folder of the images.
        format: format of the labels. Default: detected from the content.
        val_fraction: fraction of the images that becomes `val` if the data has no validation split. Default: 0.1.
        flags: further flags of create_tfrecord.py.

    Returns:
        Number of images and boxes of each split, and the names of the classes.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of create_tfrecord.py.
    """
    reports = call(
        partial(create_tfrecord.convert_labels, start=_start_runtime),
        ConvertOptions,
        "convert",
        images=images,
        output_dir=output_dir,
        annotations=annotations,
        format=format,
        val_fraction=val_fraction,
        **flags,
    )
    folder, first = Path(output_dir), next(iter(reports))
    names = class_names_of_records(expand_glob(records_in(output_dir, first)))
    return ConversionResult(
        output_dir=folder,
        images={split: report.images for split, report in reports.items()},
        boxes={split: report.boxes for split, report in reports.items()},
        class_names=names.names if names else (),
        reports={split: folder / f"{split}.report.json" for split in reports},
    )


def _start_runtime() -> None:
    from efficientdet.devices.runtime_environment import prepare_environment

    prepare_environment()
    from efficientdet.devices.runtime import start_runtime

    start_runtime(owns_process=False)  # Otherwise decoding would allocate the memory of every GPU.


def examine(
    data: AnyPath,
    *,
    annotations: AnyPath | None = None,
    val_annotations: AnyPath | None = None,
    val_records: AnyPath | None = None,
    model_name: str | None = None,
    image_size: int | str | None = None,
    hparams: Hyperparameters | None = None,
    output_dir: AnyPath | None = None,
    **flags: Any,
) -> ExaminationResult:
    """Check a data set before training, as doctor.py does.

    Args:
        data: folder of labeled images, folder that `convert` wrote, or a glob of records.
        annotations: labels of the images. Default: the folder of the images.
        val_annotations: labels of the validation images, if `annotations` has no validation split.
        val_records: glob of validation records. Default: `val-*` of the folder, if it has any.
        model_name: one of the models. Default: efficientdet-d0.
        image_size: the network's input: a side, or "WIDTHxHEIGHT". Default: the model's.
        hparams: hyperparameters of the training.
        output_dir: folder for doctor.html and doctor.json. Default: neither is written.
        flags: further flags of doctor.py.

    Returns:
        Findings, suggested hyperparameters and the path of the page.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of doctor.py.
    """
    training = records_in(data, "train")
    source: dict[str, AnyPath | None] = {"images": data}
    if not os.path.isdir(training):
        val_records = records_in(val_records, "val") if val_records else folder_records(data, "val")
        source = {"records": training, "val_records": val_records}
    return call(
        examine_data.examine,
        ExamineOptions,
        "examine",
        **source,
        annotations=annotations,
        val_annotations=val_annotations,
        model_name=model_name,
        image_size=image_size,
        hparams=hparams,
        output_dir=output_dir,
        **flags,
    )
