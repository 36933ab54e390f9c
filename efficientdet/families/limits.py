"""Which values hyperparameters may have: tables, so that a wrong one is a line and no training that learns nothing."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dataset.class_names import ClassNames
from dataset.files.untrusted_values import shown
from program_support.errors import InputError


class Limit(NamedTuple):
    """What holds for a value that may be used, and how to say it."""

    holds: Callable[[Any], bool]
    wanted: str


def one_of(*names: Any) -> Limit:
    """Any of these values."""
    return Limit(lambda value: value in names, f"{'one of ' if len(names) > 1 else ''}{', '.join(map(str, names))}")


def at_least(low: float) -> Limit:
    """Finite, and not below `low`."""
    return Limit(lambda value: low <= value < math.inf, f"at least {low:g}")


ABOVE_ZERO = Limit(lambda value: 0 < value < math.inf, "a number above 0")
SHARE = Limit(lambda value: 0 <= value <= 1, "0 to 1")
BELOW_ONE = Limit(lambda value: 0 <= value < 1, "0 up to below 1")


def check_limits(values: Mapping[str, Any], limits: Mapping[str, Limit]) -> None:
    """Raises InputError naming the first key whose value cannot be used; None is a matter of its type."""
    for key, value in values.items():
        if key in limits and value is not None and not limits[key].holds(value):
            raise InputError(f"hparam {key} is {shown(value)}; wanted {limits[key].wanted}")


def check_order(values: Mapping[str, Any], low: str, high: str, *, may_be_equal: bool) -> None:
    """Raises InputError where the first of two keys is not below the other (or, where it may be, equal to it)."""
    if values[low] > values[high] or (not may_be_equal and values[low] == values[high]):
        raise InputError(f"hparam {low} is {shown(values[low])} and {high} {shown(values[high])}; wanted {low} "
                         f"{'at most' if may_be_equal else 'below'} {high}")


def stated_classes(num_classes: int | None, class_names: ClassNames) -> str | None:
    """What to say of hparam num_classes, which counts nothing here: the classes are those that the records name.

    The reference counts a background with them, or all numbers up to the largest category id, and its defaults are COCO's
    90 and 91 whatever the data. Raises InputError where another number is meant.
    """
    named = len(class_names)
    largest = max(class_names.category_ids)
    if num_classes in (None, named):
        return None
    if num_classes not in (named + 1, largest, largest + 1, 90, 91):
        raise InputError(f"hparam num_classes is {num_classes}; the data names {named} classes "
                         f"({', '.join(class_names.names[:6])}{', ..' if named > 6 else ''}): leave it out")
    return f"num_classes={num_classes} counts as the reference does; the network has the {named} classes that the data names"
