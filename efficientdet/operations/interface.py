"""The Python interface: each function runs the same operation as the program of its name.

Keyword arguments have the names of the program's flags. None stands for a flag that is not given. Every function prints
what the program prints, raises `efficientdet.InputError` (one line) where the program ends with one, and TypeError for
an unknown argument. No command line is parsed. Signal handlers and the random state of Python and NumPy are restored
after a call; the seeds of Keras and TensorFlow keep the values that the call has set.
"""

import contextlib
import functools
import glob
import inspect
import operator
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dataset import create_tfrecord
from dataset.class_names import class_names_of_records
from dataset.conversion.conversion_options import ConvertOptions
from dataset.records.record_files import expand_glob
from efficientdet.operations import (
    compare_models,
    evaluate_model,
    examine_data,
    export_model,
    infer_images,
    monitor_images,
    results,
    train_model,
)
from efficientdet.options.doctor import ExamineOptions
from efficientdet.options.evaluate import CompareOptions, EvaluateOptions
from efficientdet.options.export import ExportOptions
from efficientdet.options.infer import InferOptions
from efficientdet.options.monitor import MonitorOptions
from efficientdet.options.removed_flags import ALIASES, GONE
from efficientdet.options.train import TrainOptions
from program_support.checked_fields import Config, field_types, help_of, plain_types
from program_support.command_line import unknown_name_hint
from program_support.errors import InputError
from program_support.signals import exit_code, in_a_users_process

AnyPath = str | os.PathLike[str]
Function = TypeVar("Function", bound=Callable[..., Any])
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_ACCEPTED: dict[type, Any] = {str: AnyPath, tuple: AnyPath | Sequence[AnyPath], Mapping: Mapping[str, Any]}  # by type


def _with_flags(options: type) -> Callable[[Function], Function]:
    """Return a decorator that shows the options in a function's signature, for help() and __init__.pyi."""

    def decorated(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = [one for one in signature.parameters.values() if one.name != "flags"]
        for name, kind in field_types(options).items():
            if name not in signature.parameters:
                accepted = functools.reduce(operator.or_, (_ACCEPTED.get(one, one) for one in plain_types(kind)))
                parameters.append(
                    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=accepted | None)
                )
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorated


@_with_flags(TrainOptions)
def train(
    training_file_pattern: AnyPath, *, model_dir: AnyPath, val_file_pattern: AnyPath | None = None, **flags: Any
) -> results.TrainingResult:
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
    if val_file_pattern is None:
        val_file_pattern = _folder_records(training_file_pattern, "val")
    flags |= {"training_file_pattern": _records_in(training_file_pattern, "train"), "model_dir": model_dir}
    flags["val_file_pattern"] = _records_in(val_file_pattern, "val")
    return call(train_model.train, TrainOptions, "train", **flags)


@_with_flags(EvaluateOptions)
def evaluate(
    ckpt_path: AnyPath | None, val_file_pattern: AnyPath | None = None, **flags: Any
) -> results.EvaluationResult | None:
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
    flags |= {"ckpt_path": ckpt_path, "val_file_pattern": _records_in(val_file_pattern, "val")}
    return call(evaluate_model.evaluate, EvaluateOptions, "evaluate", **flags)


@_with_flags(ExportOptions)
def export(
    ckpt: AnyPath, output_dir: AnyPath, *, val_file_pattern: AnyPath | None = None, **flags: Any
) -> results.ExportResult:
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
    flags |= {"ckpt": ckpt, "output_dir": output_dir, "val_file_pattern": _records_in(val_file_pattern, "val")}
    return call(export_model.export, ExportOptions, "export", **flags)


@_with_flags(ConvertOptions)
def convert(images: AnyPath, output_dir: AnyPath = "records", **flags: Any) -> results.ConversionResult:
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
    operation = partial(create_tfrecord.convert_labels, start=_start_runtime)
    reports = call(operation, ConvertOptions, "convert", images=images, output_dir=output_dir, **flags)
    folder, first = Path(output_dir), next(iter(reports))
    names = class_names_of_records(expand_glob(_records_in(output_dir, first)))
    return results.ConversionResult(
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


@_with_flags(ExamineOptions)
def examine(
    data: AnyPath, *, val_records: AnyPath | None = None, image_size: int | str | None = None, **flags: Any
) -> results.ExaminationResult:
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
    validation = _records_in(val_records, "val") or _folder_records(data, "val")
    flags |= {"records": _records_in(data, "train"), "val_records": validation}
    return call(examine_data.examine, ExamineOptions, "examine", image_size=image_size, **flags)


@_with_flags(InferOptions)
def infer(
    image_path: AnyPath | int | Sequence[AnyPath], output_dir: AnyPath = "annotated", *, model: AnyPath, **flags: Any
) -> Path:
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
    flags |= {"image_path": image_path, "output_dir": output_dir, "model": model}
    call(infer_images.infer, InferOptions, "infer", **flags)
    return Path(output_dir)


@_with_flags(CompareOptions)
def compare(
    models: Sequence[AnyPath], val_file_pattern: AnyPath, *, output_dir: AnyPath, **flags: Any
) -> results.ComparisonResult:
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
    flags |= {"models": models, "output_dir": output_dir, "val_file_pattern": _records_in(val_file_pattern, "val")}
    return call(compare_models.compare, CompareOptions, "compare", **flags)


@_with_flags(MonitorOptions)
def monitor(
    model: AnyPath, images: AnyPath | Sequence[AnyPath], *, reference: AnyPath | None = None, **flags: Any
) -> results.MonitorResult:
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
    flags |= {"model": model, "images": images, "reference": _records_in(reference, "val")}
    return call(monitor_images.monitor, MonitorOptions, "monitor", **flags)


def call(operation: Callable[[Config], Any], options: type[Config], name: str, /, **arguments: Any) -> Any:
    """Return the result of an operation with the options that the arguments of the function `name` state.

    Raises:
        TypeError: for an argument that is no option.
        InputError: for an invalid value.
        KeyboardInterrupt: after Ctrl-C.
    """
    kinds, aliases, removed = field_types(options), ALIASES.get(name, {}), GONE.get(name, {})
    names = (*kinds, *aliases, *removed)
    with _python_errors(), in_a_users_process(), _random_state_and_options():
        given = {}
        for key, value in arguments.items():
            if key not in names:
                hint = unknown_name_hint(key, names).replace("--", "")
                raise TypeError(f"{name}() has no argument {key!r}" + (f"; {hint}" if hint else ""))
            if key in removed and value is not None and str(value) not in removed[key].passes:
                raise InputError(f"{key}={value}: has been removed: {removed[key].reason}")
            if key not in removed and value is not None:
                key = aliases.get(key, key)
                given[key] = _converted(value, kinds[key], name=key)
        return operation(options(**given))


def _converted(value: Any, kind: Any, *, name: str) -> Any:
    """Return a value as the type of an option: paths become text, NumPy's numbers Python's, sequences tuples."""
    plain = plain_types(kind)[0]
    if isinstance(value, Mapping):
        return value
    if plain is tuple:
        note = help_of(kind)
        alone = [value] if note and note.repeats else str(value).split(",")
        return tuple(map(str, alone if isinstance(value, str | os.PathLike | int) else value))
    try:
        if plain is str:
            return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        if plain is bool and isinstance(value, str):
            if value.lower() not in _SWITCH:
                raise ValueError("expected true or false")
            return _SWITCH[value.lower()]
        return operator.index(value) if plain is int and not isinstance(value, str) else plain(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}={value}: {error}") from error


def _records_in(path: AnyPath | None, split: str) -> Any:
    """Return the glob of a split's records if `path` is a folder that has them, else `path`."""
    return path and (_folder_records(path, split) or os.fspath(path))


def _folder_records(folder: AnyPath, split: str) -> str | None:
    """Return the glob of a split's records in a folder; None if it has none or is not a folder."""
    pattern = os.path.join(glob.escape(os.fspath(folder)), f"{split}-*")
    return pattern if os.path.isdir(folder) and glob.glob(pattern) else None


@contextlib.contextmanager
def _python_errors() -> Iterator[None]:
    """Let messages begin with an argument, not a flag; turn the exit code of Ctrl-C into KeyboardInterrupt."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).removeprefix("--")) from error.__cause__
    except SystemExit as error:
        if error.code != exit_code(signal.SIGINT):
            raise
        raise KeyboardInterrupt("stopped; the same call continues") from None


@contextlib.contextmanager
def _random_state_and_options() -> Iterator[None]:
    """Restore the random state of Python and NumPy and the options of TensorFlow that a training changes."""
    state, numpy_state, options = random.getstate(), np.random.get_state(), _tensorflow_options()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        if tensorflow := sys.modules.get("tensorflow"):
            eagerly, optimizer = options or (False, {})
            tensorflow.config.run_functions_eagerly(eagerly)
            tensorflow.config.optimizer.set_experimental_options(
                {"disable_meta_optimizer": optimizer.get("disable_meta_optimizer", False)}
            )


def _tensorflow_options() -> tuple[bool, dict[str, bool]] | None:
    """Return whether functions run eagerly, and the graph optimizer's options; None before TensorFlow is imported."""
    if tensorflow := sys.modules.get("tensorflow"):
        config = tensorflow.config
        return config.functions_run_eagerly(), config.optimizer.get_experimental_options()
    return None
