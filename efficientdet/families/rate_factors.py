"""Hyperparameter `learning_rate_factors`: learning rate multipliers by weight name, such as 0.1 for a backbone."""

import math
import re
from collections.abc import Iterable

EXPECTED = "items PATTERN:FACTOR separated by semicolons, such as '^efficientnet:0.1;/bias$:2'"


def rate_factors(table: str, names: Iterable[str]) -> list[float]:
    """Return the factor of each weight: the product of the items whose regular expression matches its name.

    Args:
        table: items PATTERN:FACTOR separated by semicolons; factors are above 0.
        names: names of weights as in checkpoints: `class_net/class-0/pointwise_kernel`.

    Raises:
        ValueError: the table has another form, or a pattern matches no name.
    """
    names = list(names)
    factors: dict[str, float] = {}
    for item in filter(None, map(str.strip, table.split(";"))):
        pattern, colon, factor = item.rpartition(":")
        try:
            expression, number = re.compile(pattern), float(factor)
        except (re.error, ValueError) as error:
            raise ValueError(f"{item!r} is not PATTERN:FACTOR") from error
        if not colon or not pattern or not 0 < number < math.inf:
            raise ValueError(f"{item!r} is not PATTERN:FACTOR")
        matching = [name for name in names if expression.search(name)]
        if names and not matching:
            raise ValueError(f"{pattern!r} matches no trainable weight")
        factors.update({name: factors.get(name, 1.0) * number for name in matching})
    return [factors.get(name, 1.0) for name in names]


def is_table(table: str) -> bool:
    """Return whether a table has the expected form."""
    try:
        rate_factors(table, ())
    except ValueError:
        return False
    return True
