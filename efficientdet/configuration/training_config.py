"""Configuration of a training: its options with resolved paths and hyperparameters."""

import re
from typing import Annotated

from dataset.class_names import ClassNames
from efficientdet.families.hyperparameters import Hyperparameters, stated_classes
from efficientdet.options.train import TRAINING_MODES, TrainSettings
from program_support.checked_fields import Count, checked
from program_support.errors import InputError


@checked
class TrainingConfig(TrainSettings):
    """Configuration of a training: the options of train.py with resolved paths and hyperparameters."""

    hparams: Hyperparameters
    hparams_given: frozenset[str] = frozenset()  # keys in --hparams, and keys that the loaded weights determine
    records: tuple[str, ...]
    val_records: tuple[str, ...]
    val_json_file: str | None
    class_names: ClassNames
    model_dir: str
    training_mode: Annotated[str, TRAINING_MODES] = "traineval"
    eval_epochs: tuple[Count, ...] = ()  # epochs, instead of eval_from and eval_period; (): use these

    def __post_init__(self):
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
        enabled = self.training_mode == "traineval" or self.target_ap or self.patience
        due = epoch in self.eval_epochs if self.eval_epochs else epoch % period == 0 and epoch >= self.eval_from
        return bool(self.evaluates and enabled and due)

    @property
    def last_epoch(self) -> int:
        """Epoch after which training stops; the learning rate schedule ends at num_epochs."""
        last = self.hparams.num_epochs
        if self.training_mode == "train":  # reference's rule: the first epoch after three quarters
            last = min(last, int(0.75 * last) + 1)
        return min(last, self.stop_epoch) if self.stop_epoch else last
