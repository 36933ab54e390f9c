"""Configuration of a training and its checks. Imports neither Keras nor TensorFlow."""

import re
from typing import Annotated

from dataset.class_names import ClassNames
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes
from efficientdet.run_log.loggers import check_logger_names
from efficientdet.run_log.mlperf_log import DIVISIONS, STATUSES, check_submission
from program_support.checked_fields import Count, CountOrZero, Positive, PositiveShare, Share, checked, one_of
from program_support.errors import InputError

PRETRAINED_BACKBONE = "imagenet"  # weights of keras.applications


@checked
class TrainingConfig:
    """Configuration of a training: the flags of train.py with resolved paths and hyperparameters."""

    hparams: Hyperparameters
    hparams_given: frozenset[str] = frozenset()  # keys in --hparams, and keys that the loaded weights determine
    override_checkpoint: bool = False  # accept keys in --hparams that change what the loaded weights mean
    records: tuple[str, ...]
    val_records: tuple[str, ...]
    val_json_file: str | None
    class_names: ClassNames
    model_dir: str
    training_mode: Annotated[str, one_of("train", "train300", "traineval")] = "traineval"
    batch_size: Count | None = None  # per process, under JAX per device; None: devices.memory.with_batch_sizes
    eval_batch_size: Count | None = None  # per process, under JAX per device; None: as batch_size
    num_examples_per_epoch: Count | None = None  # images; None: the number of records
    max_minutes: Positive | None = None  # time budget in minutes, including evaluations
    stop_epoch: CountOrZero = 0  # epoch; 0: num_epochs
    eval_from: CountOrZero = 0  # first epoch with an evaluation
    eval_period: Count | None = None  # epochs; None: checkpoint_period
    eval_epochs: tuple[Count, ...] = ()  # epochs, instead of eval_from and eval_period; (): use these
    target_ap: Share = 0.0  # AP at which training stops; 0: never
    patience: CountOrZero = 0  # evaluations without a better AP before training stops; 0: never
    eval_samples: CountOrZero = 0  # records; 0: all
    checkpoint_period: Count = 10  # epochs
    checkpoint_steps: CountOrZero = 0  # steps; 0: checkpoints at the ends of epochs only
    resume: str = "auto"
    on_nan: Annotated[str, one_of("stop", "rollback")] = "stop"
    lr_per_64: Positive | None = None
    warn_of_lr: bool = True
    accumulate_steps: Count = 1
    num_devices: Count | None = None  # of this process under JAX; None: all
    shard_optimizer_state: bool = False  # and averaged weights, over the devices under JAX
    bn_group: Count | None = None  # processes, or devices under JAX, that share batch norm statistics
    deterministic: bool = False
    loggers: tuple[str, ...] = ("tensorboard",)
    mlperf_log: str | None = None
    mlperf_ruleset: str | None = None  # None: the first version with a benchmark of the family
    mlperf_division: Annotated[str, one_of(*DIVISIONS)] = "open"
    mlperf_status: Annotated[str, one_of(*STATUSES)] = "research"
    mlperf_organization: str = "unknown"
    mlperf_platform: str | None = None  # None: number and type of the devices
    mlperf_cache_cleared: bool = False
    suggest: bool = False  # apply the suggestions of efficientdet.data_checks.at_start
    balance: Annotated[str, one_of("none", "repeat_factor")] = "none"
    balance_threshold: PositiveShare = 0.001  # fraction of images below which a class is repeated
    verify_records: Annotated[str, one_of("auto", "always", "never")] = "auto"
    max_bad_fraction: Share = 0.01
    pretrained_ckpt: str | None = None
    class_aliases: tuple[str, ...] = ()  # "name in pretrained_ckpt:name in the records"
    backbone_init: str | None = None
    teacher_ckpt: str | None = None  # checkpoint of a larger detector whose features are imitated
    distillation_weight: Positive = 1.0  # of the distillation loss
    precision: str | None = None
    amp: bool | None = None
    use_xla: bool | None = None
    seed: CountOrZero = 0
    benchmark: bool = False
    benchmark_steps: Count = 100
    use_fake_data: bool = False
    cache: Annotated[str, one_of("none", "decoded")] = "none"
    calibration_images: CountOrZero | None = None  # images; None: see efficientdet.training.batch_norm_calibration
    validate: bool = False
    testdev_dir: str | None = None
    log_filename: str = "time_log.txt"
    log_steps: Count = 1
    lr_tb: bool = False
    time_history: bool = True
    set_num_threads: bool = True
    enable_map_parallelization: bool = True
    debug: bool = False

    def __post_init__(self):
        check_logger_names(self.loggers)
        check_submission(
            division=self.mlperf_division,
            status=self.mlperf_status,
            ruleset=self.mlperf_ruleset,
            organization=self.mlperf_organization,
            platform=self.mlperf_platform,
        )
        if self.eval_epochs and (self.eval_period is not None or self.eval_from):
            raise InputError("--eval_epochs cannot be combined with --eval_period or --eval_from")
        if self.lr_per_64 is not None and self.hparams.learning_rate is not None:
            raise InputError(
                "--lr and --lr_per_64 are both given; expected one: the learning rate, or the rate per 64 images"
            )
        hparams, stated = self.hparams, self.lr_per_64 or self.hparams.learning_rate
        if not stated and (hparams.optimizer == "sgd") != (hparams.RATE_OPTIMIZER == "sgd"):
            raise InputError(
                f"hparam optimizer={hparams.optimizer}: the default learning rate is one for {hparams.RATE_OPTIMIZER}; "
                "also give --lr (for adam and adamw usually 0.0001 to 0.001)"
            )
        for name in ("validate", "target_ap", "patience"):
            if getattr(self, name) and not self.val_records:
                raise InputError(f"--{name} needs --val_file_pattern")
        if self.follows_ap and not self.val_records:
            raise InputError("hparam lr_decay_method=plateau needs --val_file_pattern")
        stated_classes(self.hparams.num_classes, self.class_names)
        if expression := self.hparams.var_freeze_expr:
            try:
                re.compile(expression)
            except re.error as error:
                raise InputError(
                    f"hparam var_freeze_expr is {expression!r}: invalid regular expression ({error})"
                ) from error

    @property
    def evaluates(self) -> bool:
        """True if the training measures AP, which needs validation records."""
        return self.training_mode != "train300" and not self.benchmark and bool(self.val_records)

    def evaluates_after(self, epoch: int) -> bool:
        """Return whether an evaluation during training follows this epoch, not counting the final evaluation."""
        period = self.eval_period or self.checkpoint_period
        enabled = self.training_mode == "traineval" or self.target_ap or self.patience or self.follows_ap
        due = epoch in self.eval_epochs if self.eval_epochs else epoch % period == 0 and epoch >= self.eval_from
        return bool(self.evaluates and enabled and due)

    @property
    def follows_ap(self) -> bool:
        """True if the learning rate is reduced where AP does not improve."""
        return self.hparams.lr_decay_method == "plateau"

    @property
    def last_epoch(self) -> int:
        """Epoch after which training stops; the learning rate schedule ends at num_epochs."""
        last = self.hparams.num_epochs
        if self.training_mode == "train":  # as in the reference: the first epoch after three quarters
            last = min(last, int(0.75 * last) + 1)
        return min(last, self.stop_epoch) if self.stop_epoch else last
