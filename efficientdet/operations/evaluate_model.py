"""The operation of eval.py and of `efficientdet.evaluate`: turn options into a configuration and run it."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from dataset.class_names import ClassNames, parse_class_names, read_class_names
from dataset.files.untrusted_values import error_context
from efficientdet.checkpoints.checkpoint import existing_checkpoint
from efficientdet.checkpoints.checkpoint_classes import classes_beside
from efficientdet.checkpoints.description import read_description
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
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.exports.formats import exported_model, format_of
from efficientdet.operations.results import EvaluationResult
from efficientdet.options.evaluate import EvaluateOptions
from efficientdet.options.model import CHECKPOINT_ONLY
from efficientdet.prediction.open_model import open_model
from object_detection.coco.results import TESTDEV_FILE_NAME
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError

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
    class_names, records = _data_set(options, prefix, json_file=json_file)
    runtime: dict[str, Any] = runtime_settings(options) if is_checkpoint else {}
    writable_file(options.output_json, "output_json")
    outputs: list[str | Path | None] = [options.output_json]
    for flag, names in _FILES_OF_FOLDERS.items():
        if (folder := getattr(options, flag)) is not None:
            outputs += [Path(writable_folder(folder, flag), name) for name in names]
    prepare_environment()
    from efficientdet.devices.memory import report_out_of_memory
    from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint

    with claimed_outputs(*outputs), report_out_of_memory(batch_size=options.batch_size):
        resolved: dict[str, Any] = {
            "val_json_file": json_file,
            "model": model_config(prefix, overrides, options, class_names=class_names, **runtime),
            "records": records,
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
) -> tuple[ClassNames, tuple[str, ...]]:
    """Return the classes and the records, () for results that a JSON file alone measures."""
    if options.results and json_file and not (options.val_file_pattern or options.report or options.suspects):
        return read_class_names(json_file), ()
    records = records_of(options.val_file_pattern, "val_file_pattern")
    of_checkpoint = _class_names_of(prefix, options) if prefix else None
    return class_names_for(records, json_file=json_file, of_checkpoint=of_checkpoint), records


def _class_names_of(prefix: str, options: EvaluateOptions) -> ClassNames | None:
    """Return the classes of a checkpoint before it is read; None if neither it nor a flag or file names them."""
    if description := read_description(prefix):
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
