"""The operation of train.py and of `efficientdet.train`: turn flags into a configuration and run it."""

import sys
from pathlib import Path
from typing import Any

from dataset.records.record_files import value_range_of_records
from efficientdet.checkpoints.checkpoint import existing_backbone, existing_checkpoint
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
    writable_folder,
)
from efficientdet.configuration.model_config import hyperparameters, parse_overrides
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.operations.results import TrainingResult
from efficientdet.options.removed_flags import training_mode
from efficientdet.options.train import TrainOptions, TrainSettings
from efficientdet.run_log.loggers import check_loggers
from program_support.checked_fields import values_of
from program_support.command_line import whole_numbers


def train(options: TrainOptions) -> TrainingResult:
    """Return the files and measures of a training.

    Raises:
        InputError: an argument, the records or a checkpoint cannot be used.
    """
    config = _configuration(options)
    _check_files(config)
    prepare_environment()
    from efficientdet.training import loop

    outcome, folder = loop.train(config), Path(config.model_dir)
    if outcome.exit_code:  # A checkpoint is saved: the same command resumes.
        sys.exit(outcome.exit_code)
    saved_model, report = folder / "emackpt-final", folder / "report.html"
    return TrainingResult(
        model_dir=folder,
        numbers=outcome.metrics,
        saved_model=saved_model if saved_model.exists() else None,
        report=report if report.exists() else None,
        log=folder / config.log_filename,
    )


def _configuration(options: TrainOptions) -> TrainingConfig:
    hparams = hyperparameters(
        options,
        learning_rate="lr",
        lr_warmup_init="warmup_value",
        lr_warmup_epoch="warmup_epochs",
        num_epochs="num_epochs",
    )
    val_json_file = existing_file(options.val_json_file, "val_json_file")
    records = records_of(options.training_file_pattern, "training_file_pattern")
    val_records = records_of(options.val_file_pattern, "val_file_pattern") if options.val_file_pattern else ()
    hparams_given = frozenset(parse_overrides(options.hparams))
    if not {"black_level", "white_level"} <= hparams_given:
        levels = zip(("black_level", "white_level"), value_range_of_records(records), strict=True)
        hparams = hparams.overridden({key: level for key, level in levels if key not in hparams_given})
    resolved: dict[str, Any] = {
        "hparams": hparams,
        "hparams_given": hparams_given,
        "records": records,
        "val_json_file": val_json_file,
        "val_records": val_records,
        "class_names": class_names_for(records, json_file=val_json_file, other_records=val_records),
        "model_dir": required(options.model_dir, "model_dir"),
        "training_mode": training_mode(options.training_mode, options.mode),
        "eval_epochs": whole_numbers(options.eval_epochs, "eval_epochs"),
    }
    return TrainingConfig(**resolved, **values_of(options, TrainSettings))


def _check_files(config: TrainingConfig) -> None:
    """Raise InputError for a path at which the training would fail later."""
    existing_checkpoint(config.pretrained_ckpt, "pretrained_ckpt")
    existing_backbone(config.backbone_init)
    if config.resume not in ("auto", "never"):
        existing_checkpoint(config.resume, "resume")
    writable_folder(config.model_dir, "model_dir")
    check_loggers(config)
    if config.testdev_dir:
        writable_folder(config.testdev_dir, "testdev_dir")
