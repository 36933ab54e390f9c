"""The operation of train.py and of `efficientdet.train`: flags to configuration to one call."""

import sys
from dataclasses import fields
from pathlib import Path

from efficientdet.checkpoints.checkpoint_flags import existing_backbone, existing_checkpoint
from efficientdet.configuration.flag_definitions import (
    FLAGS,
    FlagValues,
    define_machine_flags,
    define_model_flags,
    finish_flags,
    hyperparameters,
)
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
    writable_file,
    writable_folder,
)
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.configuration.removed_flags import AUTOML_MODES, training_mode
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.operations.results import TrainingResult
from efficientdet.run_log.mlperf_log import mlperf_files
from program_support.checked_fields import Count, NonNegative, Positive
from program_support.command_line import Define
from program_support.field_flags import define_flag, define_flags_of, whole_numbers


def define_flags(values: FlagValues = FLAGS) -> None:
    """Every flag of the reference's train.py, and ours."""
    define_model_flags(values)
    define_machine_flags(values)
    _define_flags_of_data_and_length(values)
    _define_flags_of_running(values)
    _define_flags_of_mlperf(values)
    _define_flags_of_learning(values)
    finish_flags("train", values)


def _define_flags_of_data_and_length(values: FlagValues) -> None:
    define_flags_of(TrainingConfig, {
        "training_mode": "traineval: evaluate while training; train: stop after three quarters of the schedule and evaluate "
                         "once; train300: no evaluation.",
        "val_json_file": "COCO json to evaluate against; without one, the boxes in the records.",
        "model_dir": "Folder for everything that the training writes.",
        "batch_size": "Images a step (of one rank). Default: 64, on a CPU 16, or as many as the memory is good for.",
        "eval_batch_size": "Images a step of evaluation (of one rank). Default: by the same rule.",
        "num_examples_per_epoch": "Images an epoch. Default: the number of records.",
        "max_minutes": "Time budget of the training in minutes, evaluations included. After each epoch the schedule is "
                       "shortened, or lengthened up to --num_epochs, to end in time.",
        "stop_epoch": "Stop here, however long the schedule; 0: at its end.",
        "eval_from": "No evaluation while training before this epoch.",
        "eval_period": "Epochs between evaluations. Default: --checkpoint_period.",
        "eval_epochs": "Evaluate after these epochs and no others, such as 40,50,55; with neither --eval_period nor "
                       "--eval_from.",
        "target_ap": "Stop when an evaluation reaches this AP, such as 0.34; 0: never.",
        "patience": "Stop after so many evaluations without a better AP; 0: never.",
        "eval_samples": "Evaluate the first so many records; 0: all.",
        "testdev_dir": "Folder for the final detections as a COCO submission.",
    }, values)
    define = Define(values)
    define.enum("mode", None, AUTOML_MODES, "google/automl's name: train is --training_mode=train300.")
    define.string("training_file_pattern", None, "Glob of the training TFRecords.")
    define.string("val_file_pattern", None, "Glob of the validation TFRecords.")
    define_flag("num_epochs", Count | None, None, "Length of the learning rate schedule. Default: hparam num_epochs, 300.",
                values)


def _define_flags_of_running(values: FlagValues) -> None:
    define_flags_of(TrainingConfig, {
        "benchmark": "Time --benchmark_steps steps; nothing is saved or evaluated.",
        "benchmark_steps": "Steps of --benchmark.",
        "use_fake_data": "Repeat the first batch: the speed without input.",
        "set_num_threads": "On an accelerator leave two cores free of input work.",
        "log_filename": "Name of the log in model_dir.",
        "log_steps": "Steps between log entries.",
        "lr_tb": "The learning rate of every step to TensorBoard.",
        "enable_map_parallelization": "Read and crop images in parallel.",
        "checkpoint_period": "Epochs between checkpoints, and between evaluations.",
        "checkpoint_steps": "Steps between checkpoints, beside those after epochs; 0: none.",
        "resume": "auto: continue from the newest whole checkpoint in model_dir; never: start again and put the old ones aside; or "
                  "the checkpoint to continue from.",
        "on_nan": "A loss that is NaN or infinite: stop, or go back to the last checkpoint with half the rate, three times at most.",
        "deterministic": "The same bits each time, killed and resumed or not; slower.",
        "loggers": "Where curves go: tensorboard, json, wandb, mlflow.",
        "verify_records": "Check every record before the first step; auto: where it takes seconds.",
        "cache": "decoded: keep the decoded images in memory, each rank all of them, as far as they fit.",
        "max_bad_fraction": "Records without any keys of boxes that are skipped, at most this share.",
        "debug": "Run step by step, without compilation.",
        "time_history": "Log images per second.",
        "validate": "The loss on the validation records after every epoch.",
    }, values)


def _define_flags_of_mlperf(values: FlagValues) -> None:
    define_flags_of(TrainingConfig, {
        "mlperf_log": "Files for MLPerf's :::MLLOG lines, comma-separated; - is standard output.",
        "mlperf_ruleset": "Version of MLPerf's rules that the lines are for: a benchmark's id is another in other versions. "
                          "Default: the first that know the family.",
        "mlperf_division": "Division that the lines name.",
        "mlperf_status": "Status that the lines name.",
        "mlperf_organization": "Who submits.",
        "mlperf_platform": "The machine. Default: number and kind of the devices.",
        "mlperf_cache_cleared": "Say that the machine's caches were emptied before; this program cannot.",
    }, values)


def _define_flags_of_learning(values: FlagValues) -> None:
    define_flags_of(TrainingConfig, {
        "calibration_images": "Images whose batch statistics, of up to 64 at a time, replace the running ones of the averaged "
                              "weights before an evaluation and at the end of a checkpoint period. Default: 512 where a "
                              "process's batch is below 16 images and twice as many fit, else 0.",
        "accumulate_steps": "Batches whose gradients make one step together.",
        "bn_group": "Neighboring processes that take the statistics of batch norm together.",
        "pretrained_ckpt": "Detector to start from: a checkpoint of ours, google/automl's or NVIDIA's, a torchvision .pth or "
                           ".safetensors, or a published name, see get_weights.sh.",
        "backbone_init": "Backbone to start from: 'imagenet', a .h5 file of keras.applications, a checkpoint, a .pth or "
                         ".safetensors, or a published name.",
        "lr_per_64": "Peak learning rate for every 64 images of a step, instead of --lr.",
        "warn_of_lr": "Warn of a learning rate above twice the published one.",
        "seed": "Of weights, order and augmentation.",
        "suggest": "Set the hyperparameters that a look at the records finds better, except those given.",
        "balance": "repeat_factor: show images of rare classes more often.",
        "balance_threshold": "Of repeat_factor: images of a class that is in a smaller share f of the images come "
                             "sqrt(threshold / f) times an epoch.",
    }, values)
    define_flag("lr", Positive | None, None, "Peak learning rate, absolute. Default: the model's; EfficientDet's 0.08 for 64 "
                                             "images of a step.", values)
    define_flag("warmup_value", NonNegative | None, None, "Learning rate of the first step. Default: hparam lr_warmup_init, "
                                                          "0.0001.", values)
    define_flag("warmup_epochs", NonNegative | None, None, "Epochs of warm-up. Default: hparam lr_warmup_epoch, 1.", values)


def main(values: FlagValues = FLAGS) -> TrainingResult:
    """Flags to configuration to one call."""
    config = _configuration(values)
    _check_files(config)
    prepare_environment()
    from efficientdet.training.loop import train

    outcome, folder = train(config), Path(config.model_dir)
    if outcome.stopped:  # with everything saved: the same configuration resumes
        sys.exit(outcome.exit_code)
    saved_model, report = folder / "emackpt-final", folder / "report.html"
    return TrainingResult(
        model_dir=folder, numbers=outcome.metrics, saved_model=saved_model if saved_model.exists() else None,
        report=report if report.exists() else None, log=folder / config.log_filename)


def _configuration(values: FlagValues) -> TrainingConfig:
    hparams = hyperparameters(values, learning_rate="lr", lr_warmup_init="warmup_value", lr_warmup_epoch="warmup_epochs",
                              num_epochs="num_epochs")
    val_json_file = existing_file(values.val_json_file, "val_json_file")
    records = records_of(values.training_file_pattern, "training_file_pattern")
    worked_out = {
        "hparams": hparams, "hparams_given": frozenset(parse_overrides(values.hparams)), "records": records,
        "val_json_file": val_json_file,
        "val_records": records_of(values.val_file_pattern, "val_file_pattern") if values.val_file_pattern else (),
        "class_names": class_names_for(records, json_file=val_json_file), "model_dir": required(values.model_dir, "model_dir"),
        "training_mode": training_mode(values.training_mode, values.mode, both=values["training_mode"].present > 0),
        "loggers": tuple(values.loggers), "eval_epochs": whole_numbers(values.eval_epochs, "eval_epochs")}
    as_given = {item.name: values[item.name].value for item in fields(TrainingConfig) if item.name not in worked_out}
    return TrainingConfig(**worked_out, **as_given)


def _check_files(config: TrainingConfig) -> None:
    """Raises InputError for a path at which the training would fail later."""
    existing_checkpoint(config.pretrained_ckpt, "pretrained_ckpt")
    existing_backbone(config.backbone_init)
    if config.resume not in ("auto", "never"):
        existing_checkpoint(config.resume, "resume")
    writable_folder(config.model_dir, "model_dir")
    for path in mlperf_files(config.mlperf_log or ""):
        if path != "-":
            writable_file(path, "mlperf_log")
    config.hparams.family.mlperf_benchmark(config.mlperf_ruleset)  # where its rules know the family
    if config.testdev_dir:
        writable_folder(config.testdev_dir, "testdev_dir")
