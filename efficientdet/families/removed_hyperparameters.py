"""Hyperparameters that a family's reference has and this program has not: passed over where they ask for nothing."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dataset.files.untrusted_values import shown
from program_support.errors import InputError

RENAMED = {"learn_crowds": "train_on_crowds", "normalisations": "normalizations"}  # former name -> name


class Gone(NamedTuple):
    """Why a key is none here."""

    reason: str
    idle: tuple = (None,)  # values that ask for nothing else than what is done here, the reference's defaults among them


def is_gone(key: str, value: Any, gone: Mapping[str, Gone]) -> bool:
    """Whether a key is none here and its value asks for nothing that is not done; raises InputError where it does ask."""
    if key not in gone:
        return False
    if not any(_same(value, idle) for idle in gone[key].idle):
        raise InputError(f"hparam {key} has been removed: {gone[key].reason}; it is {shown(value)}")
    return True


def with_current_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters of a checkpoint, whenever it was written, under the names that they have now."""
    return {RENAMED.get(key, key): value for key, value in stored.items()}


def _same(value: Any, idle: Any) -> bool:
    if isinstance(value, list | tuple) and isinstance(idle, tuple):
        return len(value) == len(idle) and all(map(_same, value, idle))
    if isinstance(idle, float) and isinstance(value, int | float):
        return math.isclose(value, idle, rel_tol=1e-5)
    return isinstance(value, bool) == isinstance(idle, bool) and value == idle
