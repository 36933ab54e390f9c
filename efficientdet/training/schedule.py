"""The learning rate of a step: linear warm-up, then half a cosine down to 0."""

import math
from dataclasses import dataclass

from object_detection.errors import InputError


@dataclass(frozen=True, kw_only=True)
class CosineSchedule:
    """Learning rate as a function of the step (Loshchilov and Hutter 2017, eq. 5, after a warm-up of W steps).

    Before W: warmup_init + s / W * (peak_learning_rate - warmup_init). Then, to T = total_steps:
    peak_learning_rate / 2 * (1 + cos(pi * (s - W) / (T - W))). From T on: 0, where T exceeds W.
    """

    peak_learning_rate: float
    warmup_init: float
    warmup_steps: int
    total_steps: int

    def __post_init__(self):
        for name in ("peak_learning_rate", "warmup_init"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"schedule: {name} is {value}; wanted a finite number, not negative")
        if self.warmup_steps < 0:
            raise InputError(f"schedule: warmup_steps is {self.warmup_steps}; wanted 0 or more")
        if self.total_steps < 1:
            raise InputError(f"schedule: total_steps is {self.total_steps}; wanted 1 or more")

    @classmethod
    def from_epochs(cls, peak_learning_rate: float, *, warmup_init: float, warmup_epochs: float, num_epochs: float,
                    steps_per_epoch: int) -> "CosineSchedule":
        """From lengths in epochs, fractions of a step cut off as the reference does."""
        return cls(peak_learning_rate=peak_learning_rate, warmup_init=warmup_init,
                   warmup_steps=int(warmup_epochs * steps_per_epoch), total_steps=int(num_epochs * steps_per_epoch))

    def __call__(self, step: int) -> float:
        """The learning rate with which step `step` (0 is the first) updates the weights."""
        if step < 0:
            raise ValueError(f"step {step} is negative")
        if step < self.warmup_steps:
            return self.warmup_init + step / self.warmup_steps * (self.peak_learning_rate - self.warmup_init)
        cosine_steps = self.total_steps - self.warmup_steps
        if cosine_steps <= 0:
            return self.peak_learning_rate  # a run all of warm-up: nothing to come down in
        progress = min((step - self.warmup_steps) / cosine_steps, 1.0)
        return 0.5 * self.peak_learning_rate * (1.0 + math.cos(math.pi * progress))
