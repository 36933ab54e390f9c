"""The operation of train.py and of `efficientdet.train`: turn flags into a configuration and run it."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

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
    """Define the flags of train.py: the reference's and additional ones."""
    define_model_flags(values)
    define_machine_flags(values)
    _define_data_and_schedule_flags(values)
    _define_run_flags(values)
    _define_mlperf_flags(values)
    _define_optimization_flags(values)
    finish_flags("train", values)


def _define_data_and_schedule_flags(values: FlagValues) -> None:
    define_flags_of(
        TrainingConfig,
        {
            "training_mode": "traineval: evaluate during training; train: stop after three quarters of the schedule, "
            "then evaluate once; train300: do not evaluate.",
            "val_json_file": "COCO JSON file with the ground truth. Default: the boxes in the records.",
            "model_dir": "Output folder for checkpoints, logs and reports. An existing training in it resumes.",
            "batch_size": "Batch size per process, or per device under KERAS_BACKEND=jax. Default: 64 (16 on CPU), "
            "reduced to what fits in memory.",
            "eval_batch_size": "Batch size per process, or per device under KERAS_BACKEND=jax, in evaluation. Default: "
            "as for --batch_size.",
            "num_examples_per_epoch": "Number of images per epoch. Default: the number of records.",
            "max_minutes": "Time budget in minutes, including evaluations. After each epoch the schedule is "
            "shortened, or lengthened up to --num_epochs, to end within it.",
            "stop_epoch": "Epoch to stop after; does not change the learning rate schedule. 0: the end of the "
            "schedule.",
            "eval_from": "First epoch with an evaluation during training.",
            "eval_period": "Number of epochs between evaluations. Default: --checkpoint_period.",
            "eval_epochs": "Epochs to evaluate after, comma-separated, such as 40,50,55. Cannot be combined with "
            "--eval_period or --eval_from.",
            "target_ap": "AP, from 0 to 1, at which training stops, such as 0.34; 0: never.",
            "patience": "Number of evaluations without a better AP after which training stops; 0: never.",
            "eval_samples": "Number of records to evaluate, from the first; 0: all.",
            "testdev_dir": "Output folder for the final detections as a COCO test-dev submission.",
        },
        values,
    )
    define = Define(values)
    define.enum(
        "mode", None, AUTOML_MODES, "google/automl's name for --training_mode; train is --training_mode=train300."
    )
    define.string("training_file_pattern", None, "Glob pattern of the training TFRecords.")
    define.string("val_file_pattern", None, "Glob pattern of the validation TFRecords.")
    define_flag(
        "num_epochs",
        Count | None,
        None,
        "Length of the learning rate schedule in epochs. Default: hparam num_epochs, 300.",
        values,
    )


def _define_run_flags(values: FlagValues) -> None:
    define_flags_of(
        TrainingConfig,
        {
            "benchmark": "Measure the training speed over --benchmark_steps steps, without checkpoints and "
            "evaluations.",
            "benchmark_steps": "Number of steps of --benchmark.",
            "use_fake_data": "Repeat the first batch, to measure the speed without the input pipeline.",
            "set_num_threads": "With an accelerator, leave two CPU cores free of the input pipeline.",
            "log_filename": "Name of the log file in model_dir.",
            "log_steps": "Number of steps between log entries.",
            "lr_tb": "Log the learning rate of every step to TensorBoard.",
            "enable_map_parallelization": "Read and augment images in parallel.",
            "checkpoint_period": "Number of epochs between checkpoints, and between evaluations.",
            "checkpoint_steps": "Number of steps between additional checkpoints; 0: checkpoints at the ends of epochs "
            "only.",
            "resume": "auto: resume from the newest intact checkpoint in model_dir; never: start from scratch and "
            "move existing checkpoints aside; or the path of a checkpoint to resume from.",
            "on_nan": "Action on a NaN or infinite loss: stop, or rollback to the last checkpoint and halve the "
            "learning rate (at most 3 times).",
            "deterministic": "Bitwise reproducible training, also when interrupted and resumed; slower.",
            "loggers": "Loggers of the training curves, comma-separated: tensorboard, json, wandb, mlflow.",
            "verify_records": "Check every record before the first step; auto: only if it takes seconds.",
            "cache": "decoded: keep decoded images in memory, as many as fit; each process caches the complete data "
            "set.",
            "max_bad_fraction": "Maximum fraction of records without box features; these are skipped. More are an "
            "error.",
            "debug": "Run eagerly, without compilation.",
            "time_history": "Log images per second.",
            "validate": "Compute the loss on the validation records after every epoch.",
        },
        values,
    )


def _define_mlperf_flags(values: FlagValues) -> None:
    define_flags_of(
        TrainingConfig,
        {
            "mlperf_log": "Output files for MLPerf's :::MLLOG lines, comma-separated; -: standard output.",
            "mlperf_ruleset": "Version of MLPerf's rules, which determines the benchmark's id in the log. Default: "
            "the first version with a benchmark of the model family.",
            "mlperf_division": "MLPerf division in the log.",
            "mlperf_status": "MLPerf submission status in the log.",
            "mlperf_organization": "Name of the submitting organization in the log.",
            "mlperf_platform": "Name of the platform in the log. Default: number and type of the devices.",
            "mlperf_cache_cleared": "Log that the system caches were cleared before the run. The program does not "
            "clear them.",
        },
        values,
    )


def _define_optimization_flags(values: FlagValues) -> None:
    define_flags_of(
        TrainingConfig,
        {
            "calibration_images": "Number of images for recomputing the batch norm statistics of the averaged "
            "weights, in batches of up to 64, before an evaluation and at the end of a checkpoint period. Default: "
            "512 if the batch size per process is below 16 and twice as many images fit in memory, else 0.",
            "accumulate_steps": "Number of batches whose gradients are accumulated in one step.",
            "num_devices": "Number of devices per process under KERAS_BACKEND=jax. Default: all that it finds.",
            "shard_optimizer_state": "Distribute optimizer state and averaged weights over the devices under "
            "KERAS_BACKEND=jax, to save memory. Checkpoints are the same.",
            "bn_group": "Number of processes, or of devices under KERAS_BACKEND=jax, that share batch norm "
            "statistics (synchronized batch norm). Default: 1 process; all devices under JAX.",
            "pretrained_ckpt": "Pretrained detector to start from: a checkpoint of this project, google/automl or "
            "NVIDIA, a torchvision .pth or .safetensors file, or a name that get_weights.sh lists.",
            "override_checkpoint": "Accept values in --hparams that change what the loaded weights mean, such as "
            "anchors, levels and normalization. Otherwise they are refused.",
            "class_aliases": "Names of classes in --pretrained_ckpt and their names in the records, as OLD:NEW, "
            "comma-separated, whose rows of the class predictor are kept. Equal names need none.",
            "backbone_init": "Pretrained backbone to start from: 'imagenet', a .h5 file of keras.applications, a "
            "checkpoint, a .pth or .safetensors file, or a name that get_weights.sh lists.",
            "teacher_ckpt": "Checkpoint of a larger detector whose pyramid features the model imitates (distillation).",
            "distillation_weight": "Weight of the distillation loss of --teacher_ckpt.",
            "lr_per_64": "Peak learning rate per 64 images of the global batch size, instead of --lr.",
            "warn_of_lr": "Warn if the learning rate is more than twice the published one.",
            "seed": "Random seed for weight initialization, shuffling and augmentation.",
            "suggest": "Set the hyperparameters that the data check suggests, except those in --hparams.",
            "balance": "Class balancing. repeat_factor: repeat images of rare classes.",
            "balance_threshold": "Threshold of --balance=repeat_factor: an image with a class that occurs in a "
            "smaller fraction f of the images is repeated sqrt(threshold / f) times per epoch.",
        },
        values,
    )
    define_flag(
        "lr",
        Positive | None,
        None,
        "Peak learning rate. Default: the model's; 0.08 per 64 images of the global batch size for EfficientDet.",
        values,
    )
    define_flag(
        "warmup_value",
        NonNegative | None,
        None,
        "Learning rate of the first step. Default: hparam lr_warmup_init, 0.0001.",
        values,
    )
    define_flag(
        "warmup_epochs",
        NonNegative | None,
        None,
        "Length of the learning rate warmup in epochs. Default: hparam lr_warmup_epoch, 1.",
        values,
    )


def main(values: FlagValues = FLAGS) -> TrainingResult:
    """Train as the flags state."""
    config = _configuration(values)
    _check_files(config)
    prepare_environment()
    from efficientdet.training.loop import train

    outcome, folder = train(config), Path(config.model_dir)
    if outcome.stopped:  # A checkpoint is saved: the same command resumes.
        sys.exit(outcome.exit_code)
    saved_model, report = folder / "emackpt-final", folder / "report.html"
    return TrainingResult(
        model_dir=folder,
        numbers=outcome.metrics,
        saved_model=saved_model if saved_model.exists() else None,
        report=report if report.exists() else None,
        log=folder / config.log_filename,
    )


def _configuration(values: FlagValues) -> TrainingConfig:
    hparams = hyperparameters(
        values,
        learning_rate="lr",
        lr_warmup_init="warmup_value",
        lr_warmup_epoch="warmup_epochs",
        num_epochs="num_epochs",
    )
    val_json_file = existing_file(values.val_json_file, "val_json_file")
    records = records_of(values.training_file_pattern, "training_file_pattern")
    val_records = records_of(values.val_file_pattern, "val_file_pattern") if values.val_file_pattern else ()
    resolved: dict[str, Any] = {
        "hparams": hparams,
        "hparams_given": frozenset(parse_overrides(values.hparams)),
        "records": records,
        "val_json_file": val_json_file,
        "val_records": val_records,
        "class_names": class_names_for(records, json_file=val_json_file, other_records=val_records),
        "model_dir": required(values.model_dir, "model_dir"),
        "training_mode": training_mode(values.training_mode, values.mode, both=values["training_mode"].present > 0),
        "loggers": tuple(values.loggers),
        "eval_epochs": whole_numbers(values.eval_epochs, "eval_epochs"),
    }
    unchanged: dict[str, Any] = {
        item.name: values[item.name].value for item in fields(TrainingConfig) if item.name not in resolved
    }
    return TrainingConfig(**resolved, **unchanged)


def _check_files(config: TrainingConfig) -> None:
    """Raise InputError for a path at which the training would fail later."""
    existing_checkpoint(config.pretrained_ckpt, "pretrained_ckpt")
    existing_checkpoint(config.teacher_ckpt, "teacher_ckpt")
    existing_backbone(config.backbone_init)
    if config.resume not in ("auto", "never"):
        existing_checkpoint(config.resume, "resume")
    writable_folder(config.model_dir, "model_dir")
    for path in mlperf_files(config.mlperf_log or ""):
        if path != "-":
            writable_file(path, "mlperf_log")
    config.hparams.family.mlperf_benchmark(config.mlperf_ruleset)  # reports an unknown rule set before the training
    if config.testdev_dir:
        writable_folder(config.testdev_dir, "testdev_dir")
