"""Options of a training: the flags of train.py and the arguments of `efficientdet.train`."""

from typing import Annotated

from efficientdet.options.model import EvaluatedRecords, GroundTruth, MachineOptions, ModelOptions
from efficientdet.options.removed_flags import AUTOML_MODES
from program_support.checked_fields import (
    Count,
    CountOrZero,
    Help,
    NonNegative,
    Positive,
    Share,
    checked,
    one_of,
)

TRAINING_MODES = one_of("train", "train300", "traineval")


@checked
class TrainSettings(MachineOptions):
    """Options that a training uses as they are given."""

    override_checkpoint: Annotated[
        bool,
        Help(
            "Accept values in --hparams that change what the loaded weights mean, such as anchors, levels and "
            "normalization. Otherwise they are refused."
        ),
    ] = False
    batch_size: Annotated[
        Count | None,
        Help(
            "Batch size per process, or per device under KERAS_BACKEND=jax. Default: 64 (16 on CPU), reduced to "
            "what fits in memory."
        ),
    ] = None
    eval_batch_size: Annotated[
        Count | None,
        Help(
            "Batch size per process, or per device under KERAS_BACKEND=jax, in evaluation. Default: as for "
            "--batch_size."
        ),
    ] = None
    num_examples_per_epoch: Annotated[
        Count | None,
        Help("Number of images per epoch. Default: the number of records."),
    ] = None
    max_minutes: Annotated[
        Positive | None,
        Help(
            "Time budget in minutes, including evaluations. After each epoch the schedule is shortened, or "
            "lengthened up to --num_epochs, to end within it."
        ),
    ] = None
    stop_epoch: Annotated[
        CountOrZero,
        Help("Epoch to stop after; does not change the learning rate schedule. 0: the end of the schedule."),
    ] = 0
    eval_from: Annotated[CountOrZero, Help("First epoch with an evaluation during training.")] = 0
    eval_period: Annotated[
        Count | None,
        Help("Number of epochs between evaluations. Default: --checkpoint_period."),
    ] = None
    target_ap: Annotated[Share, Help("AP, from 0 to 1, at which training stops, such as 0.34; 0: never.")] = 0.0
    patience: Annotated[
        CountOrZero,
        Help("Number of evaluations without a better AP after which training stops; 0: never."),
    ] = 0
    eval_samples: EvaluatedRecords = 0
    checkpoint_period: Annotated[Count, Help("Number of epochs between checkpoints, and between evaluations.")] = 10
    checkpoint_steps: Annotated[
        CountOrZero,
        Help("Number of steps between additional checkpoints; 0: checkpoints at the ends of epochs only."),
    ] = 0
    resume: Annotated[
        str,
        Help(
            "auto: resume from the newest intact checkpoint in model_dir; never: start from scratch and move "
            "existing checkpoints aside; or the path of a checkpoint to resume from."
        ),
    ] = "auto"
    lr_per_64: Annotated[
        Positive | None,
        Help("Peak learning rate per 64 images of the global batch size, instead of --lr."),
    ] = None
    warn_of_lr: Annotated[bool, Help("Warn if the learning rate is more than twice the published one.")] = True
    accumulate_steps: Annotated[Count, Help("Number of batches whose gradients are accumulated in one step.")] = 1
    num_devices: Annotated[
        Count | None,
        Help("Number of devices per process under KERAS_BACKEND=jax. Default: all that it finds."),
    ] = None
    bn_group: Annotated[
        Count | None,
        Help(
            "Number of processes, or of devices under KERAS_BACKEND=jax, that share batch norm statistics "
            "(synchronized batch norm). Default: 1 process; all devices under JAX."
        ),
    ] = None
    deterministic: Annotated[
        bool,
        Help("Bitwise reproducible training, also when interrupted and resumed; slower."),
    ] = False
    loggers: Annotated[
        tuple[str, ...],
        Help("Loggers of the training curves, comma-separated: tensorboard, json, wandb, mlflow."),
    ] = ("tensorboard",)
    mlperf_log: Annotated[
        str | None,
        Help("Output files for MLPerf's :::MLLOG lines, comma-separated; -: standard output."),
    ] = None
    mlperf_submission: Annotated[
        tuple[str, ...],
        Help(
            "Entries of the MLPerf log about a submission, as KEY=VALUE, comma-separated, such as submission_org=NAME, "
            "submission_division=closed, submission_platform=NAME, cache_clear=True."
        ),
    ] = ()
    suggest: Annotated[
        bool,
        Help("Set the hyperparameters that the data check suggests, except those in --hparams."),
    ] = False
    verify_records: Annotated[
        str,
        one_of("auto", "always", "never"),
        Help("Check every record before the first step; auto: only if it takes seconds."),
    ] = "auto"
    max_bad_fraction: Annotated[
        Share,
        Help("Maximum fraction of records without box features; these are skipped. More are an error."),
    ] = 0.01
    pretrained_ckpt: Annotated[
        str | None,
        Help(
            "Pretrained detector to start from: a checkpoint of this project, google/automl or NVIDIA, a "
            "torchvision .pth or .safetensors file, or a name that get_weights.sh lists."
        ),
    ] = None
    class_aliases: Annotated[
        tuple[str, ...],
        Help(
            "Names of classes in --pretrained_ckpt and their names in the records, as OLD:NEW, comma-separated, "
            "whose rows of the class predictor are kept. Equal names need none."
        ),
    ] = ()
    backbone_init: Annotated[
        str | None,
        Help(
            "Pretrained backbone to start from: 'imagenet', a .h5 file of keras.applications, a checkpoint, a "
            ".pth or .safetensors file, or a name that get_weights.sh lists."
        ),
    ] = None
    seed: Annotated[CountOrZero, Help("Random seed for weight initialization, shuffling and augmentation.")] = 0
    benchmark: Annotated[
        bool,
        Help("Measure the training speed over --benchmark_steps steps, without checkpoints and evaluations."),
    ] = False
    benchmark_steps: Annotated[Count, Help("Number of steps of --benchmark.")] = 100
    use_fake_data: Annotated[
        bool,
        Help("Repeat the first batch, to measure the speed without the input pipeline."),
    ] = False
    write_saved_model: Annotated[
        bool, Help("Write emackpt-final, a SavedModel of the averaged weights, at the end (TensorFlow only).")
    ] = True
    calibration_images: Annotated[
        CountOrZero | None,
        Help(
            "Number of images for recomputing the batch norm statistics of the averaged weights, in batches of up"
            " to 64, before an evaluation and at the end of a checkpoint period. Default: 512 if the batch size "
            "per process is below 16 and twice as many images fit in memory, else 0."
        ),
    ] = None
    validate: Annotated[bool, Help("Compute the loss on the validation records after every epoch.")] = False
    testdev_dir: Annotated[
        str | None,
        Help("Output folder for the final detections as a COCO test-dev submission."),
    ] = None
    log_filename: Annotated[str, Help("Name of the log file in model_dir.")] = "time_log.txt"
    log_steps: Annotated[Count, Help("Number of steps between log entries.")] = 1
    lr_tb: Annotated[bool, Help("Log the learning rate of every step to TensorBoard.")] = False
    time_history: Annotated[bool, Help("Log images per second.")] = True
    set_num_threads: Annotated[
        bool,
        Help("With an accelerator, leave two CPU cores free of the input pipeline."),
    ] = True
    enable_map_parallelization: Annotated[bool, Help("Read and augment images in parallel.")] = True
    debug: Annotated[bool, Help("Run eagerly, without compilation.")] = False


@checked
class TrainOptions(ModelOptions, TrainSettings):
    """All options of a training."""

    training_file_pattern: Annotated[str | None, Help("Glob pattern of the training TFRecords.")] = None
    val_file_pattern: Annotated[str | None, Help("Glob pattern of the validation TFRecords.")] = None
    val_json_file: GroundTruth = None
    model_dir: Annotated[
        str | None,
        Help("Output folder for checkpoints, logs and reports. An existing training in it resumes."),
    ] = None
    training_mode: Annotated[
        str | None,
        TRAINING_MODES,
        Help(
            "traineval: evaluate during training; train: stop after three quarters of the schedule, then evaluate "
            "once; train300: do not evaluate.",
            default="traineval",
        ),
    ] = None
    mode: Annotated[
        str | None,
        one_of(*AUTOML_MODES),
        Help("google/automl's name for --training_mode; train is --training_mode=train300."),
    ] = None
    num_epochs: Annotated[
        Count | None, Help("Length of the learning rate schedule in epochs. Default: hparam num_epochs, 300.")
    ] = None
    eval_epochs: Annotated[
        tuple[str, ...],
        Help(
            "Epochs to evaluate after, comma-separated, such as 40,50,55. Cannot be combined with --eval_period or "
            "--eval_from."
        ),
    ] = ()
    lr: Annotated[
        Positive | None,
        Help("Peak learning rate. Default: the model's; 0.08 per 64 images of the global batch size for EfficientDet."),
    ] = None
    warmup_value: Annotated[
        NonNegative | None, Help("Learning rate of the first step. Default: hparam lr_warmup_init, 0.0001.")
    ] = None
    warmup_epochs: Annotated[
        NonNegative | None, Help("Length of the learning rate warmup in epochs. Default: hparam lr_warmup_epoch, 1.")
    ] = None


PRETRAINED_BACKBONE = "imagenet"  # weights of keras.applications
