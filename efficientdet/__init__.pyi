"""Public names for type checkers, written by scripts/docs/flag_reference.py."""

import collections.abc
import os
import pathlib
import typing

import efficientdet.operations.results
from efficientdet.inference.detect import Detector as Detector
from efficientdet.inference.image_detections import ImageDetections as ImageDetections
from efficientdet.plugins.streams.video_source import read_frames as read_frames
from efficientdet.prediction.open_model import load_detector as load_detector
from program_support.errors import InputError as InputError

__version__: str

def compare(
    models: collections.abc.Sequence[str | os.PathLike[str]],
    val_file_pattern: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str],
    val_json_file: str | os.PathLike[str] | None = None,
    common_classes: bool | None = None,
    eval_samples: int | None = None,
    bootstrap: int | None = None,
) -> efficientdet.operations.results.ComparisonResult:
    """Compare two or more detectors on the same images, as compare.py does.

    The other arguments are flags of compare.py, such as `common_classes`.

    Args:
        models: checkpoints, files of `export`, SavedModels or .json files of detections (COCO's results format); the
            others are compared with the first.
        val_file_pattern: folder that `convert` wrote, or a glob of records.
        output_dir: folder for compare.html and compare.json.

    Returns:
        Differences with their paired 95 % intervals.

    Raises:
        InputError: a file or value is invalid, or a detector has other classes or other images.
        TypeError: a keyword is not a flag of compare.py.
    """

def convert(
    images: str | os.PathLike[str],
    output_dir: str | os.PathLike[str] = "records",
    *,
    max_bad_fraction: float | None = None,
    crowds_as_objects: bool | None = None,
    white_level: float | None = None,
    black_level: float | None = None,
    num_shards: int | None = None,
    num_threads: int | None = None,
    engine: str | os.PathLike[str] | None = None,
    annotations: str | os.PathLike[str] | None = None,
    format: str | os.PathLike[str] | None = None,
    val_fraction: float | None = None,
    split_seed: int | None = None,
    splits_of: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    group_by: str | os.PathLike[str] | None = None,
    include_masks: bool | None = None,
    labeled_classes: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    label_map_json_path: str | os.PathLike[str] | None = None,
) -> efficientdet.operations.results.ConversionResult:
    """Convert labeled images of any supported format to TFRecords, as create_tfrecord.py does.

    Data sets of 1,000 images and more are converted by several processes. A script that calls this then needs
    `if __name__ == "__main__":`, as for every use of `multiprocessing`, or num_threads=1.

    The other arguments are flags of create_tfrecord.py, such as annotations and val_fraction.

    Args:
        images: folder of the images.
        output_dir: folder for the records `train-*`, `val-*` and `test-*`.

    Returns:
        Number of images and boxes of each split, and the names of the classes.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of create_tfrecord.py.
    """

def evaluate(
    ckpt_path: str | os.PathLike[str] | None,
    val_file_pattern: str | os.PathLike[str] | None = None,
    *,
    runtime: str | os.PathLike[str] | None = None,
    int8_images: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    amp: bool | None = None,
    precision: str | os.PathLike[str] | None = None,
    use_xla: bool | None = None,
    model_name: str | os.PathLike[str] | None = None,
    hparams: str | os.PathLike[str] | collections.abc.Mapping[str, typing.Any] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    val_json_file: str | os.PathLike[str] | None = None,
    results: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    eval_samples: int | None = None,
    enable_map_parallelization: bool | None = None,
    bootstrap: int | None = None,
    testdev_dir: str | os.PathLike[str] | None = None,
    output_json: str | os.PathLike[str] | None = None,
    report: str | os.PathLike[str] | None = None,
    suspects: str | os.PathLike[str] | None = None,
    store_thresholds: bool | None = None,
    calibrate_scores: bool | None = None,
) -> efficientdet.operations.results.EvaluationResult | None:
    """Evaluate a checkpoint, an exported file or results on TFRecords, as eval.py does.

    The other arguments are flags of eval.py, such as `report`.

    Args:
        ckpt_path: a prefix, a folder, published weights, or a file of `export`; None with results=FILE (COCO's format).
        val_file_pattern: folder that `convert` wrote, or a glob of records; None with results and val_json_file.

    Returns:
        COCO measures; None in every process except the first.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of eval.py.
    """

def examine(
    data: str | os.PathLike[str],
    *,
    val_records: str | os.PathLike[str] | None = None,
    image_size: int | str | None = None,
    model_name: str | os.PathLike[str] | None = None,
    hparams: str | os.PathLike[str] | collections.abc.Mapping[str, typing.Any] | None = None,
    records: str | os.PathLike[str] | None = None,
    images_read: int | None = None,
    pretrained_ckpt: str | os.PathLike[str] | None = None,
    output_dir: str | os.PathLike[str] | None = None,
) -> efficientdet.operations.results.ExaminationResult:
    """Check a data set before training, as doctor.py does.

    The other arguments are flags of doctor.py, such as model_name and output_dir.

    Args:
        data: folder that `convert` wrote, or a glob of records.
        val_records: glob of validation records. Default: `val-*` of the folder, if it has any.
        image_size: the network's input: a side, or "WIDTHxHEIGHT". Default: the model's.

    Returns:
        Findings, suggested hyperparameters and the path of the page.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of doctor.py.
    """

def export(
    ckpt: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    val_file_pattern: str | os.PathLike[str] | None = None,
    model_name: str | os.PathLike[str] | None = None,
    hparams: str | os.PathLike[str] | collections.abc.Mapping[str, typing.Any] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    formats: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    images: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    runs: int | None = None,
    val_json_file: str | os.PathLike[str] | None = None,
    eval_samples: int | None = None,
    int8_images: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    int8_samples: int | None = None,
) -> efficientdet.operations.results.ExportResult:
    """Export a checkpoint to standalone files and compare each with it, as export.py does.

    The other arguments are flags of export.py, such as formats=["onnx", "openvino"].

    Args:
        ckpt: a prefix, a folder or the name of published weights.
        output_dir: folder for the files, README.md and artifacts.json.
        val_file_pattern: folder that `convert` wrote or a glob of records, to measure AP on. Default: no AP.

    Returns:
        The files, and the agreement of each with the checkpoint.

    Raises:
        InputError: a file, value or combination of values is invalid, or a package is missing.
        TypeError: a keyword is not a flag of export.py.
    """

def infer(
    image_path: str | os.PathLike[str] | int | collections.abc.Sequence[str | os.PathLike[str]],
    output_dir: str | os.PathLike[str] = "annotated",
    *,
    model: str | os.PathLike[str],
    runtime: str | os.PathLike[str] | None = None,
    int8_images: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    amp: bool | None = None,
    precision: str | os.PathLike[str] | None = None,
    use_xla: bool | None = None,
    model_name: str | os.PathLike[str] | None = None,
    hparams: str | os.PathLike[str] | collections.abc.Mapping[str, typing.Any] | None = None,
    class_names: str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    model_dir: str | os.PathLike[str] | None = None,
    saved_model_dir: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    debug: bool | None = None,
    tile: str | os.PathLike[str] | None = None,
    overlap: float | None = None,
    tile_whole: bool | None = None,
    min_score_thresh: float | None = None,
    calibrated_scores: bool | None = None,
    classes: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    max_boxes_to_draw: int | None = None,
    format: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    track: bool | None = None,
    save: str | os.PathLike[str] | None = None,
    event_seconds: float | None = None,
    max_offline_seconds: float | None = None,
    json_lines: str | os.PathLike[str] | None = None,
    mqtt: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Detect in images, videos, a camera or a stream and write annotated copies, as infer.py does.

    A camera or stream is read until Ctrl-C, after which the function returns.

    The other arguments are flags of infer.py, such as save, json_lines and mqtt.

    Args:
        image_path: images, videos, folders and glob patterns, or one camera number, device or address of a stream.
        output_dir: folder for the results.
        model: checkpoint, file of `export`, or name of published weights.

    Returns:
        The folder of the results.

    Raises:
        InputError: a file, value or combination of values is invalid, or inputs could not be decoded.
        TypeError: a keyword is not a flag of infer.py.
    """

def monitor(
    model: str | os.PathLike[str],
    images: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]],
    *,
    reference: str | os.PathLike[str] | None = None,
    false_alarms: float | None = None,
    output_dir: str | os.PathLike[str] | None = None,
) -> efficientdet.operations.results.MonitorResult:
    """Estimate AP on unlabeled images and report what differs from the reference, as monitor.py does.

    The other arguments are flags of monitor.py, such as output_dir and false_alarms.

    Args:
        model: output folder of a quick start, checkpoint, or file of `export`.
        images: images, folders and glob patterns.
        reference: folder that `convert` wrote or a glob of validation records. Default: the reference beside the model.

    Returns:
        Estimate with its interval, drift and alarm.

    Raises:
        InputError: a file or value is invalid, or there is no reference.
        TypeError: a keyword is not a flag of monitor.py.
    """

def train(
    training_file_pattern: str | os.PathLike[str],
    *,
    model_dir: str | os.PathLike[str],
    val_file_pattern: str | os.PathLike[str] | None = None,
    amp: bool | None = None,
    precision: str | os.PathLike[str] | None = None,
    use_xla: bool | None = None,
    override_checkpoint: bool | None = None,
    batch_size: int | None = None,
    eval_batch_size: int | None = None,
    num_examples_per_epoch: int | None = None,
    max_minutes: float | None = None,
    stop_epoch: int | None = None,
    eval_from: int | None = None,
    eval_period: int | None = None,
    target_ap: float | None = None,
    patience: int | None = None,
    eval_samples: int | None = None,
    checkpoint_period: int | None = None,
    checkpoint_steps: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    lr_per_64: float | None = None,
    warn_of_lr: bool | None = None,
    accumulate_steps: int | None = None,
    num_devices: int | None = None,
    bn_group: int | None = None,
    deterministic: bool | None = None,
    loggers: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    mlperf_log: str | os.PathLike[str] | None = None,
    mlperf_submission: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    suggest: bool | None = None,
    verify_records: str | os.PathLike[str] | None = None,
    max_bad_fraction: float | None = None,
    pretrained_ckpt: str | os.PathLike[str] | None = None,
    class_aliases: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    backbone_init: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    benchmark: bool | None = None,
    benchmark_steps: int | None = None,
    use_fake_data: bool | None = None,
    write_saved_model: bool | None = None,
    calibration_images: int | None = None,
    validate: bool | None = None,
    testdev_dir: str | os.PathLike[str] | None = None,
    log_filename: str | os.PathLike[str] | None = None,
    log_steps: int | None = None,
    lr_tb: bool | None = None,
    time_history: bool | None = None,
    set_num_threads: bool | None = None,
    enable_map_parallelization: bool | None = None,
    debug: bool | None = None,
    model_name: str | os.PathLike[str] | None = None,
    hparams: str | os.PathLike[str] | collections.abc.Mapping[str, typing.Any] | None = None,
    val_json_file: str | os.PathLike[str] | None = None,
    training_mode: str | os.PathLike[str] | None = None,
    mode: str | os.PathLike[str] | None = None,
    num_epochs: int | None = None,
    eval_epochs: str | os.PathLike[str] | collections.abc.Sequence[str | os.PathLike[str]] | None = None,
    lr: float | None = None,
    warmup_value: float | None = None,
    warmup_epochs: float | None = None,
) -> efficientdet.operations.results.TrainingResult:
    """Train a detector on TFRecords, as train.py does. A second call with the same model_dir resumes.

    Ctrl-C saves a checkpoint and raises KeyboardInterrupt; a second Ctrl-C raises it without saving.

    The other arguments are flags of train.py, such as model_name, num_epochs, and hparams={"image_size": 640}.

    Args:
        training_file_pattern: folder that `convert` wrote, or a glob of training records.
        model_dir: folder for checkpoints, log, report and the exported model.
        val_file_pattern: glob of validation records. Default: `val-*` of the folder, if it has any.

    Returns:
        Folder, COCO measures of the last evaluation, and the files.

    Raises:
        InputError: a file, value or combination of values is invalid.
        TypeError: a keyword is not a flag of train.py.
    """
