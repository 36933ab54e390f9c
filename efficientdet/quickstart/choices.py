"""What a quick start chooses from the data and from the speed of the machine, each with the reason in words."""

import math
from dataclasses import dataclass

import numpy as np

STEPS_FROM_RANDOM_WEIGHTS = 2500  # BCCD's 205 images reach an AP of 0.55 with 2,900 (docs/bccd.md)
STEPS_FROM_PUBLISHED_WEIGHTS = 1000
SMALLEST_SIDE = 128
JITTER = {"jitter_min": 0.8, "jitter_max": 1.25}  # published are 0.1 and 2
_MULTIPLE = 32  # pixels, of sides that are tried
_MOST_EPOCHS = 300
_FOR_TRAINING = 0.85  # of the minutes; the rest for start, compilation and evaluations
_PATIENCE = 4  # times the wanted steps: more of them are not worth their time


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a step took. side: the longer one of the input, pixels."""

    seconds: float
    side: int
    batch_size: int
    accelerated: bool


def typical_side(sizes: np.ndarray) -> int:
    """The longer side that most images have or exceed, of sizes [n, 2]: their median."""
    return int(np.median(sizes.max(axis=1)))


def batch_size(images: int, *, accelerated: bool) -> int:
    """On a CPU 4: what counts from random weights is the number of steps. 16 for an accelerator, which needs more at a time."""
    return max(1, min(images, 16 if accelerated else 4))


def image_side(largest: int, published: int, pace: Pace, *, wanted_steps: int, minutes: float) -> tuple[int, str]:
    """The longer side of the network's input, and why: the largest up to that of the images, and of the published model, at
    which the wanted steps fit into the minutes. Seconds grow with the number of pixels."""
    most = max(SMALLEST_SIDE, min(published, math.ceil(largest / _MULTIPLE) * _MULTIPLE))
    steps_at = {side: _FOR_TRAINING * minutes * 60 / (pace.seconds * (side / pace.side) ** 2)
                for side in range(most, SMALLEST_SIDE - 1, -_MULTIPLE)}
    for side, steps in steps_at.items():
        if steps >= wanted_steps:
            limit = ("as large as the images" if side >= largest else "the model's own" if side == published else
                     f"the largest at which {wanted_steps} steps take {minutes:g} minutes here")
            return side, limit
    side, steps = list(steps_at.items())[-1]
    return side, f"the smallest, and even so {int(steps)} steps fit into {minutes:g} minutes where {wanted_steps} are wanted"


def number_of_epochs(images: int, pace: Pace, *, wanted_steps: int, minutes: float) -> tuple[int, str]:
    """As many as the minutes hold, up to four times the wanted steps; and why."""
    steps_an_epoch = math.ceil(images / pace.batch_size)
    fitting = int(_FOR_TRAINING * minutes * 60 / (pace.seconds * steps_an_epoch))
    enough = math.ceil(_PATIENCE * wanted_steps / steps_an_epoch)
    epochs = max(1, min(fitting, enough, _MOST_EPOCHS))
    shown = f"{epochs * steps_an_epoch} steps of {pace.batch_size} images, {pace.seconds:.2f} s each"
    if not fitting:
        return epochs, f"{shown}: even one takes longer than {minutes:g} minutes"
    return epochs, f"{shown}; more would bring little" if epochs < fitting else f"{shown}, what {minutes:g} minutes hold"


def learning_rate(batch: int, *, from_random_weights: bool) -> tuple[float, str]:
    """The peak rate, and why."""
    if from_random_weights:
        return min(0.025 * batch, 0.16), "higher than the published one, as the weights are random"
    return min(0.0025 * batch, 0.04), "a fraction of that from random weights, which keeps what the published ones know"
