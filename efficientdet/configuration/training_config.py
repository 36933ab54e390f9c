"""What a run is told; made by the entry points, checked here, free of Keras and TensorFlow."""

import re
from dataclasses import dataclass

from dataset.class_names import ClassNames
from efficientdet.configuration.flag_values import check_eval_epochs, check_numbers
from efficientdet.families.hyperparameters import Hyperparameters
from efficientdet.families.limits import stated_classes
from efficientdet.run_log.loggers import check_logger_names
from efficientdet.run_log.mlperf_log import check_submission
from program_support.errors import InputError

TRAINING_MODES = ("train", "train300", "traineval")
ON_NAN = ("stop", "rollback")
BALANCES = ("none", "repeat_factor")
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
    batch_size: int | None = None  # None, as of the next: efficientdet.devices.memory.with_batch_sizes says
    eval_batch_size: int | None = None
    num_examples_per_epoch: int | None = None  # None: the number of records
    max_minutes: float | None = None  # of training, evaluations included; the schedule is shortened to them
    stop_epoch: int = 0  # 0: num_epochs
    eval_from: int = 0
    eval_period: int | None = None  # None: checkpoint_period
    eval_epochs: tuple[int, ...] = ()  # these alone, instead of the two before; (): by those
    target_ap: float = 0.0  # 0: none
    patience: int = 0  # 0: endless
    eval_samples: int = 0  # 0: all
    checkpoint_period: int = 10
    checkpoint_steps: int = 0  # 0: at the ends of epochs only
    resume: str = "auto"
    on_nan: str = "stop"
    lr_per_64: float | None = None
    warn_of_lr: bool = True
    accumulate_steps: int = 1
    bn_group: int = 1  # neighbouring ranks whose batch statistics are one
    deterministic: bool = False
    loggers: tuple[str, ...] = ("tensorboard",)
    mlperf_log: str | None = None
    mlperf_ruleset: str | None = None  # None: those that the family was first known under
    mlperf_division: str = "open"
    mlperf_status: str = "research"
    mlperf_organization: str = "unknown"
    mlperf_platform: str | None = None  # None: so many devices of such a kind
    mlperf_cache_cleared: bool = False
    suggest: bool = False  # set what efficientdet.data_checks.at_start finds better
    balance: str = "none"
    balance_threshold: float = 0.001  # a class in a smaller share of the images is shown more often
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
    calibration_images: int | None = None  # None: those of efficientdet.training.batch_norm_calibration where batches are small
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
        check_eval_epochs(self.eval_epochs, period=self.eval_period, start=self.eval_from)
        check_submission(division=self.mlperf_division, status=self.mlperf_status, ruleset=self.mlperf_ruleset,
                         organization=self.mlperf_organization, platform=self.mlperf_platform)
        if self.balance not in BALANCES:
            raise InputError(f"--balance={self.balance}: wanted one of {', '.join(BALANCES)}")
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
        due = epoch in self.eval_epochs if self.eval_epochs else epoch % period == 0 and epoch >= self.eval_from
        return bool(self.evaluates and wanted and due)

    @property
    def last_epoch(self) -> int:
        """Where training stops; the cosine goes on to num_epochs."""
        last = self.hparams.num_epochs
        if self.training_mode == "train":  # as the reference: the first epoch beyond three quarters
            last = min(last, int(0.75 * last) + 1)
        return min(last, self.stop_epoch) if self.stop_epoch else last
