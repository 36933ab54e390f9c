"""Removed hyperparameters, most of the references: ignored if their value has no effect, else an error."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dataset.files.untrusted_values import shown
from program_support.errors import InputError


class Removed(NamedTuple):
    """Reason why a key was removed."""

    reason: str
    idle: tuple = (None,)  # values without effect, such as the reference's defaults


REMOVED_SCHEDULES = ("flat_cosine", "plateau")  # values of lr_decay_method in checkpoints of earlier versions
REMOVED_FROM_ALL = {
    "mosaic_probability": Removed("it gained nothing (docs/measurements/accuracy.md)", (0, 0.0)),
    "mosaic_share": Removed("use copy_paste_share", (0.8,)),
    "flat_share": Removed("lr_decay_method=flat_cosine gained nothing that was measured", (0.75,)),
    "lr_patience": Removed("lr_decay_method=plateau gained nothing that was measured", (5,)),
    **dict.fromkeys(
        ("brightness", "contrast", "saturation", "hue"),
        Removed("color jitter gained nothing (docs/measurements/accuracy.md)", (0.0,)),
    ),
}


def is_removed(key: str, value: Any, removed: Mapping[str, Removed]) -> bool:
    """Return whether a key was removed and its value has no effect.

    Raises:
        InputError: it would have an effect.
    """
    if key not in removed:
        return False
    if not any(_same(value, idle) for idle in removed[key].idle):
        raise InputError(f"hparam {key} has been removed: {removed[key].reason}; it is {shown(value)}")
    return True


def _same(value: Any, idle: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(idle, tuple):
        return len(value) == len(idle) and all(map(_same, value, idle))
    if isinstance(idle, float) and isinstance(value, int | float):
        return math.isclose(value, idle, rel_tol=1e-5)
    return isinstance(value, bool) == isinstance(idle, bool) and value == idle
