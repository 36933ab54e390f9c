"""Train on TFRecords: `python train.py --training_file_pattern='DIR/train-*' --val_file_pattern=... --model_dir=...`"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback for a Ctrl-C among the other imports; later `run` listens

from dataclasses import fields

from absl import flags

from efficientdet.checkpoints.checkpoint_flags import existing_backbone, existing_checkpoint
from efficientdet.configuration.flag_definitions import (
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
from efficientdet.configuration.flag_values import whole_numbers
from efficientdet.configuration.overrides import parse_overrides
from efficientdet.configuration.removed_flags import AUTOML_MODES, training_mode
from efficientdet.configuration.training_config import BALANCES, TrainingConfig
from efficientdet.devices.runtime_environment import prepare_environment
from efficientdet.families.registry import family_of
from efficientdet.run_log.mlperf_log import DIVISIONS, STATUSES, mlperf_files
from program_support.command_line import run

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Every flag of the reference's train.py, and ours."""
    define_model_flags()
    define_machine_flags()
    _define_flags_of_data_and_length()
    _define_flags_of_running()
    _define_flags_of_mlperf()
    _define_flags_of_learning()
    finish_flags("train")


def _define_flags_of_data_and_length() -> None:
    flags.DEFINE_enum("training_mode", "traineval", ["train", "train300", "traineval"],
                      "traineval: evaluate while training; train: stop after three quarters of the schedule and evaluate "
                      "once; train300: no evaluation.")
    flags.DEFINE_enum("mode", None, AUTOML_MODES, "google/automl's name: train is --training_mode=train300.")
    flags.DEFINE_string("training_file_pattern", None, "Glob of the training TFRecords.")
    flags.DEFINE_string("val_file_pattern", None, "Glob of the validation TFRecords.")
    flags.DEFINE_string("val_json_file", None, "COCO json to evaluate against; without one, the boxes in the records.")
    flags.DEFINE_string("model_dir", None, "Folder for everything that the training writes.")
    flags.DEFINE_integer("batch_size", None, "Images a step (of one rank). Default: 64, on a CPU 16, or as many as the memory "
                                             "is good for.")
    flags.DEFINE_integer("eval_batch_size", None, "Images a step of evaluation (of one rank). Default: by the same rule.")
    flags.DEFINE_integer("num_examples_per_epoch", None, "Images an epoch. Default: the number of records.")
    flags.DEFINE_integer("num_epochs", None, "Length of the learning rate schedule. Default: hparam num_epochs, 300.")
    flags.DEFINE_float("max_minutes", None, "Time budget of the training in minutes, evaluations included. After each epoch "
                                            "the schedule is shortened, or lengthened up to --num_epochs, to end in time.")
    flags.DEFINE_integer("stop_epoch", 0, "Stop here, however long the schedule; 0: at its end.")
    flags.DEFINE_integer("eval_from", 0, "No evaluation while training before this epoch.")
    flags.DEFINE_integer("eval_period", None, "Epochs between evaluations. Default: --checkpoint_period.")
    flags.DEFINE_list("eval_epochs", [], "Evaluate after these epochs and no others, such as 40,50,55; with neither "
                                         "--eval_period nor --eval_from.")
    flags.DEFINE_float("target_ap", 0.0, "Stop when an evaluation reaches this AP, such as 0.34; 0: never.")
    flags.DEFINE_integer("patience", 0, "Stop after so many evaluations without a better AP; 0: never.")
    flags.DEFINE_integer("eval_samples", 0, "Evaluate the first so many records; 0: all.")
    flags.DEFINE_string("testdev_dir", None, "Folder for the final detections as a COCO submission.")


def _define_flags_of_running() -> None:
    flags.DEFINE_bool("benchmark", False, "Time --benchmark_steps steps; nothing is saved or evaluated.")
    flags.DEFINE_integer("benchmark_steps", 100, "Steps of --benchmark.")
    flags.DEFINE_bool("use_fake_data", False, "Repeat the first batch: the speed without input.")
    flags.DEFINE_bool("set_num_threads", True, "On an accelerator leave two cores free of input work.")
    flags.DEFINE_string("log_filename", "time_log.txt", "Name of the log in model_dir.")
    flags.DEFINE_integer("log_steps", 1, "Steps between log entries.")
    flags.DEFINE_bool("lr_tb", False, "The learning rate of every step to TensorBoard.")
    flags.DEFINE_bool("enable_map_parallelization", True, "Read and crop images in parallel.")
    flags.DEFINE_integer("checkpoint_period", 10, "Epochs between checkpoints, and between evaluations.")
    flags.DEFINE_integer("checkpoint_steps", 0, "Steps between checkpoints, beside those after epochs; 0: none.")
    flags.DEFINE_string("resume", "auto", "auto: go on from the newest whole checkpoint in model_dir; never: start anew and "
                                          "put the old ones aside; or the checkpoint to go on from.")
    flags.DEFINE_enum("on_nan", "stop", ["stop", "rollback"], "A loss that is no number: stop, or go back to the last "
                                                              "checkpoint with half the rate, three times at most.")
    flags.DEFINE_bool("deterministic", False, "The same bits each time, killed and resumed or not; slower.")
    flags.DEFINE_list("loggers", "tensorboard", "Where curves go: tensorboard, json, wandb, mlflow.")
    flags.DEFINE_enum("verify_records", "auto", ["auto", "always", "never"],
                      "Check every record before the first step; auto: where it takes seconds.")
    flags.DEFINE_enum("cache", "none", ["none", "decoded"],
                      "decoded: keep the decoded images in memory, each rank all of them, as far as they fit.")
    flags.DEFINE_float("max_bad_fraction", 0.01, "Records without any keys of boxes that are skipped, at most this share.")
    flags.DEFINE_bool("debug", False, "Run step by step, without compilation.")
    flags.DEFINE_bool("time_history", True, "Log images per second.")
    flags.DEFINE_bool("validate", False, "The loss on the validation records after every epoch.")


def _define_flags_of_mlperf() -> None:
    flags.DEFINE_string("mlperf_log", None, "Files for MLPerf's :::MLLOG lines, comma-separated; - is standard output.")
    flags.DEFINE_string("mlperf_ruleset", None, "Version of MLPerf's rules that the lines are for: a benchmark's id is another "
                                                "in other versions. Default: the first that know the family.")
    flags.DEFINE_enum("mlperf_division", "open", DIVISIONS, "Division that the lines name.")
    flags.DEFINE_enum("mlperf_status", "research", STATUSES, "Status that the lines name.")
    flags.DEFINE_string("mlperf_organization", "unknown", "Who submits.")
    flags.DEFINE_string("mlperf_platform", None, "The machine. Default: number and kind of the devices.")
    flags.DEFINE_bool("mlperf_cache_cleared", False, "Say that the machine's caches were emptied before; this program cannot.")


def _define_flags_of_learning() -> None:
    flags.DEFINE_integer("calibration_images", None, "Images whose batch statistics, of up to 64 at a time, replace the "
                         "running ones of the averaged weights before an evaluation and at the end of a checkpoint period. "
                         "Default: 512 where a process's batch is below 16 images and twice as many fit, else 0.")
    flags.DEFINE_integer("accumulate_steps", 1, "Batches whose gradients make one step together.")
    flags.DEFINE_integer("bn_group", 1, "Neighbouring processes that take the statistics of batch norm together.")
    flags.DEFINE_string("pretrained_ckpt", None, "Detector to start from: a checkpoint of ours, google/automl's or NVIDIA's, a "
                                                "torchvision .pth or .safetensors, or a published name, see get_weights.sh.")
    flags.DEFINE_string("backbone_init", None, "Backbone to start from: 'imagenet', a .h5 file of keras.applications, a "
                                               "checkpoint, a .pth or .safetensors, or a published name.")
    flags.DEFINE_float("lr", None, "Peak learning rate, absolute. Default: the model's; EfficientDet's 0.08 for 64 images of a "
                                   "step.")
    flags.DEFINE_float("lr_per_64", None, "Peak learning rate for every 64 images of a step, instead of --lr.")
    flags.DEFINE_bool("warn_of_lr", True, "Warn of a learning rate above twice the published one.")
    flags.DEFINE_float("warmup_value", None, "Learning rate of the first step. Default: hparam lr_warmup_init, 0.0001.")
    flags.DEFINE_float("warmup_epochs", None, "Epochs of warm-up. Default: hparam lr_warmup_epoch, 1.")
    flags.DEFINE_integer("seed", 0, "Of weights, order and augmentation.")
    flags.DEFINE_bool("suggest", False, "Set the hyperparameters that a look at the records finds better, except those given.")
    flags.DEFINE_enum("balance", "none", BALANCES, "repeat_factor: show images of rare classes more often.")
    flags.DEFINE_float("balance_threshold", 0.001, "Of repeat_factor: images of a class that is in a smaller share f of the "
                                                   "images come sqrt(threshold / f) times an epoch.")


def main() -> None:
    """Flags to configuration to one call."""
    config = _configuration()
    _check_files(config)
    prepare_environment()
    from efficientdet.training.loop import train

    outcome = train(config)
    if outcome.stopped:  # saved: the same command resumes
        sys.exit(outcome.exit_code)


def _configuration() -> TrainingConfig:
    hparams = hyperparameters(learning_rate="lr", lr_warmup_init="warmup_value", lr_warmup_epoch="warmup_epochs",
                              num_epochs="num_epochs")
    val_json_file = existing_file(FLAGS.val_json_file, "val_json_file")
    records = records_of(FLAGS.training_file_pattern, "training_file_pattern")
    worked_out = {
        "hparams": hparams, "hparams_given": frozenset(parse_overrides(FLAGS.hparams)), "records": records,
        "val_json_file": val_json_file,
        "val_records": records_of(FLAGS.val_file_pattern, "val_file_pattern") if FLAGS.val_file_pattern else (),
        "class_names": class_names_for(records, json_file=val_json_file), "model_dir": required(FLAGS.model_dir, "model_dir"),
        "training_mode": training_mode(FLAGS.training_mode, FLAGS.mode, both=FLAGS["training_mode"].present > 0),
        "loggers": tuple(FLAGS.loggers), "eval_epochs": whole_numbers(FLAGS.eval_epochs, "eval_epochs")}
    as_given = {item.name: FLAGS[item.name].value for item in fields(TrainingConfig) if item.name not in worked_out}
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
    family_of(config.hparams.model_name).mlperf_benchmark(config.mlperf_ruleset)  # where its rules know the family
    if config.testdev_dir:
        writable_folder(config.testdev_dir, "testdev_dir")


if __name__ == "__main__":
    define_flags()
    run(main, ends_at_once=True)
