"""Learning rate schedules: linear warm-up, then one of several decays."""

import math
from dataclasses import dataclass

from efficientdet.families.hyperparameters import ScheduleHyperparameters


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate as a function of the step.

    Before W = warmup_steps: warmup_init + s / W * (peak_learning_rate - warmup_init). Then peak_learning_rate times the
    factor of `method` (Loshchilov and Hutter 2017, eq. 5, for cosines), up to T = total_steps:
    - "cosine": e + (1 - e) (1 + cos(pi (s - W) / (T - W))) / 2 with e = end_factor; from T on e, where T exceeds W;
    - "stepwise": 1, and drop_factor times less from each of drop_steps on;
    - "constant": 1.
    """

    peak_learning_rate: float
    warmup_init: float
    warmup_steps: int
    total_steps: int
    method: str = "cosine"
    drop_steps: tuple[int, ...] = ()
    drop_factor: float = 0.1
    end_factor: float = 0.0

    @classmethod
    def from_hyperparameters(
        cls, hparams: ScheduleHyperparameters, *, peak_learning_rate: float, steps_per_epoch: int
    ) -> "Schedule":
        """Return the schedule of hyperparameters in epochs; fractions of a step are truncated as in the reference."""

        def steps(epochs: float) -> int:
            return int(epochs * steps_per_epoch)

        return cls(
            peak_learning_rate=peak_learning_rate,
            warmup_init=hparams.lr_warmup_init,
            warmup_steps=max(steps(hparams.lr_warmup_epoch), hparams.lr_warmup_least_steps),
            total_steps=steps(hparams.num_epochs),
            method=hparams.lr_decay_method,
            drop_factor=hparams.lr_drop_factor,
            end_factor=hparams.lr_end_factor,
            drop_steps=(steps(hparams.first_lr_drop_epoch), steps(hparams.second_lr_drop_epoch)),
        )

    def __call__(self, step: float) -> float:
        """Return the learning rate of step `step` (0 is the first), which a plan may place between two steps."""
        if step < self.warmup_steps:
            return self.warmup_init + step / self.warmup_steps * (self.peak_learning_rate - self.warmup_init)
        if self.method == "stepwise":
            return self.peak_learning_rate * self.drop_factor ** sum(step >= drop for drop in self.drop_steps)
        if self.method == "constant" or self.total_steps <= self.warmup_steps:
            return self.peak_learning_rate  # warm-up takes all steps: none are left for the decay
        progress = min((step - self.warmup_steps) / (self.total_steps - self.warmup_steps), 1.0)
        rest = (1.0 - self.end_factor) * self.peak_learning_rate
        return self.end_factor * self.peak_learning_rate + 0.5 * rest * (1.0 + math.cos(math.pi * progress))
