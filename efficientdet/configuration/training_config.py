"""What a run is told; made by the entry points, checked here, free of Keras and TensorFlow."""

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dataset.class_names import ClassNames, class_names_of_records, read_class_names
from dataset.records.record_files import expand_glob
from efficientdet.checkpoints.checkpoint import checkpoint_prefix
from efficientdet.configuration.flag_values import check_numbers
from efficientdet.configuration.hyperparameters import Hyperparameters
from efficientdet.configuration.limits import stated_classes
from efficientdet.observing.loggers import check_logger_names
from object_detection.errors import InputError

TRAINING_MODES = ("train", "train300", "traineval")
ON_NAN = ("stop", "rollback")
PRETRAINED_BACKBONE = "imagenet"  # of keras.applications


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """A training; the flags of train.py, resolved."""

    hparams: Hyperparameters
    hparams_given: frozenset[str] = frozenset()  # those that --hparams named: they win over a checkpoint's conventions
    records: tuple[str, ...]
    val_records: tuple[str, ...]
    val_json_file: str | None
    class_names: ClassNames
    model_dir: str
    training_mode: str = "traineval"
    batch_size: int | None = None  # None, as of the next: efficientdet.machine.memory.with_batch_sizes says
    eval_batch_size: int | None = None
    num_examples_per_epoch: int | None = None  # None: the number of records
    stop_epoch: int = 0  # 0: num_epochs
    eval_from: int = 0
    eval_period: int | None = None  # None: checkpoint_period
    target_ap: float = 0.0  # 0: none
    patience: int = 0  # 0: endless
    eval_samples: int = 0  # 0: all
    checkpoint_period: int = 10
    checkpoint_steps: int = 0  # 0: at the ends of epochs only
    resume: str = "auto"
    on_nan: str = "stop"
    lr_per_64: float | None = None
    accumulate_steps: int = 1
    deterministic: bool = False
    loggers: tuple[str, ...] = ("tensorboard",)
    mlperf_log: str | None = None
    verify_records: str = "auto"
    max_bad_fraction: float = 0.01
    pretrained_ckpt: str | None = None
    backbone_init: str | None = None
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    seed: int = 0
    benchmark: bool = False
    benchmark_steps: int = 100
    use_fake_data: bool = False
    cache: str = "none"
    calibration_images: int | None = None  # None: those of efficientdet.training.calibration where batches are small
    validate: bool = False
    testdev_dir: str | None = None
    log_filename: str = "time_log.txt"
    log_steps: int = 1
    lr_tb: bool = False
    time_history: bool = True
    set_num_threads: bool = True
    enable_map_parallelization: bool = True
    debug: bool = False

    def __post_init__(self):
        if self.training_mode not in TRAINING_MODES:
            raise InputError(f"--training_mode={self.training_mode}: wanted one of {', '.join(TRAINING_MODES)}")
        check_numbers(self)
        check_logger_names(self.loggers)
        if self.on_nan not in ON_NAN:
            raise InputError(f"--on_nan={self.on_nan}: wanted one of {', '.join(ON_NAN)}")
        if self.lr_per_64 is not None and self.hparams.learning_rate is not None:
            raise InputError("--lr and --lr_per_64 are both given; --lr is the rate itself, --lr_per_64 that of 64 images")
        for name in ("validate", "target_ap", "patience"):
            if getattr(self, name) and not self.val_records:
                raise InputError(f"--{name} needs --val_file_pattern")
        stated_classes(self.hparams.num_classes, self.class_names)
        if expression := self.hparams.var_freeze_expr:
            try:
                re.compile(expression)
            except re.error as error:
                raise InputError(f"hparam var_freeze_expr is {expression!r}: no regular expression ({error})") from error

    @property
    def evaluates(self) -> bool:
        """Whether an AP is measured at all; without records for it the training goes on without."""
        return self.training_mode != "train300" and not self.benchmark and bool(self.val_records)

    def evaluates_after(self, epoch: int) -> bool:
        """Whether an evaluation in training comes after this epoch; the one at the end is another."""
        period = self.eval_period or self.checkpoint_period
        wanted = self.training_mode == "traineval" or self.target_ap or self.patience
        return bool(self.evaluates and wanted and epoch % period == 0 and epoch >= self.eval_from)

    @property
    def last_epoch(self) -> int:
        """Where training stops; the cosine goes on to num_epochs."""
        last = self.hparams.num_epochs
        if self.training_mode == "train":  # as the reference: the first epoch beyond three quarters
            last = min(last, int(0.75 * last) + 1)
        return min(last, self.stop_epoch) if self.stop_epoch else last


def required(value: str | None, flag: str) -> str:
    """The value of a flag that has no default; raises InputError where it was not given."""
    if not value:
        raise InputError(f"--{flag} is missing")
    return value


def records_of(pattern: str | None, flag: str) -> tuple[str, ...]:
    """The shards that a flag's pattern names, sorted."""
    return tuple(expand_glob(required(pattern, flag)))


def existing_file(path: str | None, flag: str) -> str | None:
    """The path, if a file is there or none was given."""
    if path and not Path(path).is_file():
        raise InputError(f"--{flag}={path}: there is no such file")
    return path or None


def existing_checkpoint(path: str | None, flag: str) -> str | None:
    """The prefix of the checkpoint that a path stands for, if one was given; raises InputError where there is none."""
    try:
        return checkpoint_prefix(path) if path else None
    except InputError as error:
        raise InputError(f"--{flag}={error}") from error


def existing_backbone(path: str | None) -> str | None:
    """What --backbone_init names; raises InputError where it is neither `imagenet` nor there."""
    if path and path.endswith(".h5"):
        return existing_file(path, "backbone_init")
    if path and path != PRETRAINED_BACKBONE:
        existing_checkpoint(path, "backbone_init")
    return path or None


def writable_folder(path: str | None, flag: str) -> str:
    """The folder, made if absent; raises InputError where that cannot be done, or nothing can be written into it."""
    folder = Path(required(path, flag))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--{flag}={path}: cannot be made a folder ({error.strerror})") from error
    try:
        with tempfile.TemporaryFile(dir=folder):  # the mode alone tells nothing of a read-only disk or of root on NFS
            pass
    except OSError as error:
        raise InputError(f"--{flag}={path}: nothing can be written into this folder ({error.strerror})") from error
    return str(folder)


def writable_file(path: str | None, flag: str) -> str | None:
    """The path, if none was given or a file can be written there; its folder is made."""
    if path and Path(path).is_dir():
        raise InputError(f"--{flag}={path}: is a folder; wanted the name of a file")
    if path:
        writable_folder(str(Path(path).parent), flag)
    return path or None


def class_names_for(records: tuple[str, ...], *, json_file: str | None) -> ClassNames:
    """The classes that stand beside the records or, for records made elsewhere, in a COCO json.

    Raises InputError where there are none, or where the two differ.
    """
    beside = class_names_of_records(list(records))
    in_json = read_class_names(json_file) if json_file else None
    if beside is None and in_json is None:
        raise InputError(f"{records[0]}: no .classes.json beside the records; pass a COCO json with --val_json_file")
    if beside is not None and in_json is not None and beside != in_json:
        raise InputError(f"{json_file}: its categories ({_shown(in_json)}) are not the classes of the records "
                         f"({_shown(beside)})")
    return beside or in_json


def _shown(class_names: ClassNames) -> str:
    pairs = [f"{i} {name}" for i, name in zip(class_names.category_ids, class_names.names, strict=True)]
    return ", ".join(pairs[:6]) + (", .." if len(pairs) > 6 else "")
