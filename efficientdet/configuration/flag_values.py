"""Which numbers each flag of the entry points takes: one table, read by the parser and by the configurations."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from program_support.errors import InputError

_LARGEST_INTEGER = 2**31 - 1  # of what TensorFlow counts with
_LARGEST_NUMBER = sys.float_info.max


@dataclass(frozen=True)
class Range:
    """From `low` (`above`: without it) to `high`; NaN is not inside."""

    low: float
    high: float = _LARGEST_INTEGER
    above: bool = False

    def refusal(self, value: float) -> str | None:
        """What is wanted instead of a value outside; None of one inside."""
        if self.low <= value <= self.high and not (self.above and value == self.low):
            return None
        lower = f"a number above {self.low}" if self.above else f"at least {self.low}"
        if self.high == _LARGEST_NUMBER:
            return f"wanted {lower}, finite"
        return f"wanted {lower}" + (f" and at most {self.high}" if value > self.high or self.high < _LARGEST_INTEGER else "")


_COUNT, _COUNT_OR_NONE, _SHARE = Range(1), Range(0), Range(0, 1)
_RATE, _RATE_OR_NONE = Range(0, _LARGEST_NUMBER, above=True), Range(0, _LARGEST_NUMBER)

RANGES = {
    "accumulate_steps": _COUNT,
    "balance_threshold": Range(0, 1, above=True),
    "batch_size": _COUNT,
    "benchmark_steps": _COUNT,
    "bm_runs": _COUNT,
    "bm_warm_up_runs": _COUNT,
    "bn_group": _COUNT,
    "calibration_images": _COUNT_OR_NONE,
    "checkpoint_period": _COUNT,
    "checkpoint_steps": _COUNT_OR_NONE,
    "eval_batch_size": _COUNT,
    "eval_from": _COUNT_OR_NONE,
    "eval_period": _COUNT,
    "eval_samples": _COUNT_OR_NONE,
    "image_size": _COUNT,
    "log_steps": _COUNT,
    "lr": _RATE,
    "lr_per_64": _RATE,
    "max_bad_fraction": _SHARE,
    "max_batch": _COUNT,
    "max_boxes_to_draw": _COUNT,
    "max_minutes": _RATE,
    "max_pixels": Range(1, LARGEST_IMAGE_PIXELS),
    "max_queue": _COUNT,
    "max_request_bytes": _COUNT,
    "min_score": _SHARE,
    "min_score_thresh": _SHARE,
    "num_epochs": _COUNT,
    "num_examples_per_epoch": _COUNT,
    "overlap": Range(0, 0.9),
    "patience": _COUNT_OR_NONE,
    "port": Range(0, 65535),
    "request_timeout_s": Range(0, 3600, above=True),
    "seed": _COUNT_OR_NONE,
    "stop_epoch": _COUNT_OR_NONE,
    "target_ap": _SHARE,
    "warmup_epochs": _RATE_OR_NONE,
    "warmup_value": _RATE_OR_NONE,
}


def refusal(flag: str, value: float | None) -> str | None:
    """What is wanted of a flag that is in the table, instead of this value; None where it will do or was not given."""
    return RANGES[flag].refusal(value) if flag in RANGES and value is not None else None


def check_numbers(settings: object) -> None:
    """Raises InputError for the first number that its flag does not take, among attributes of the flags' names."""
    for name, value in vars(settings).items():
        if wanted := refusal(name, value):
            raise InputError(f"--{name}={value}: {wanted}")


def check_eval_epochs(epochs: Sequence[int], *, period: int | None, start: int) -> None:
    """Raises InputError for --eval_epochs that is no list of epochs, or that says otherwise than --eval_period, --eval_from."""
    for epoch in epochs:
        if wanted := _COUNT.refusal(epoch):
            raise InputError(f"--eval_epochs={','.join(map(str, epochs))}: {epoch}: {wanted}")
    if epochs and (period is not None or start):
        raise InputError("--eval_epochs names the epochs; --eval_period and --eval_from do not go with it")


def whole_numbers(texts: Sequence[str], flag: str) -> tuple[int, ...]:
    """What a flag such as 40,50,55 lists. Raises InputError for anything else."""
    try:
        return tuple(map(int, texts))
    except ValueError as error:
        raise InputError(f"--{flag}={','.join(texts)}: wanted whole numbers such as 40,50,55") from error
