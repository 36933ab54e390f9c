"""Types of dataclass fields with limits, by which configurations, flags and hyperparameters are validated.

`batch_size: Count | None = None` accepts None and integers from 1 on. A string among the annotations is the name of the
field's flag if it differs: `processes: Annotated[Count, "num_threads"]`.
"""

import math
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple, TypeVar, Union, dataclass_transform, get_args, get_origin

from program_support.errors import InputError

_LARGEST_INTEGER = 2**31 - 1  # TensorFlow's counts are int32
Config = TypeVar("Config")


class Limit(NamedTuple):
    """Accepted values, and their description in messages."""

    holds: Callable[[Any], bool]
    expected: str
    choices: tuple = ()  # all values, if they can be listed


class Help(NamedTuple):
    """Help of a field's flag.

    default: the default that the flag shows where None, for "not given", is the field's. repeats: the flag of a tuple
    is repeated for each item, which may contain commas.
    """

    text: str
    default: Any = None
    repeats: bool = False


def one_of(*choices: Any) -> Limit:
    """Return a limit to the given values."""
    listed = ", ".join(map(str, choices))
    return Limit(choices.__contains__, f"one of {listed}" if len(choices) > 1 else listed, choices)


def at_least(low: float) -> Limit:
    """Return a limit to finite numbers from `low` on."""
    return Limit(lambda value: low <= value < math.inf, f"at least {low:g}")


def between(low: float, high: float) -> Limit:
    """Return a limit to numbers from `low` to `high`, both included."""
    return Limit(lambda value: low <= value <= high, f"{low} to {high}")


_INT32 = Limit(lambda value: value <= _LARGEST_INTEGER, f"at most {_LARGEST_INTEGER}")
Count = Annotated[int, at_least(1), _INT32]
CountOrZero = Annotated[int, at_least(0), _INT32]
Positive = Annotated[float, Limit(lambda value: 0 < value < math.inf, "a finite number above 0")]
NonNegative = Annotated[float, Limit(lambda value: 0 <= value < math.inf, "a finite number, at least 0")]
FiniteNumber = Annotated[float, Limit(math.isfinite, "a finite number")]
Share = Annotated[float, between(0, 1)]
PositiveShare = Annotated[float, Limit(lambda value: 0 < value <= 1, "above 0, at most 1")]
BelowOne = Annotated[float, Limit(lambda value: 0 <= value < 1, "at least 0 and below 1")]
InsideZeroToOne = Annotated[float, Limit(lambda value: 0 < value < 1, "above 0 and below 1")]


@dataclass_transform(frozen_default=True, kw_only_default=True)
def checked(cls: type[Config]) -> type[Config]:
    """Make a class a frozen dataclass with keyword arguments that raises InputError for the first invalid value.

    The message contains the field's flag. The class's own `__post_init__` runs after the check.
    """
    return _checked(cls, "--{}={}: expected {}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def checked_part(cls: type[Config]) -> type[Config]:
    """Check a class as `checked` does whose fields are not flags: the message contains class and field."""
    return _checked(cls, f"{cls.__name__}.{{}} is {{}}; expected {{}}")


def _checked(cls: type[Config], message: str) -> type[Config]:
    post_init = vars(cls).get("__post_init__")

    def __post_init__(self) -> None:
        kinds = field_types(cls)
        for name, value, expected in refused_values(self):
            given = ",".join(map(str, value)) if isinstance(value, tuple) else value
            raise InputError(message.format(flag_name(name, kinds[name]), given, expected))
        if post_init:
            post_init(self)

    cls.__post_init__ = __post_init__  # type: ignore[attr-defined]  # a class need not declare it
    return dataclass(frozen=True, kw_only=True)(cls)


def refused_values(settings: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield name, value and expected values of each invalid field of a dataclass."""
    for name, kind in field_types(type(settings)).items():
        if expected := refusal(kind, getattr(settings, name)):
            yield name, getattr(settings, name), expected


def refusal(kind: Any, value: Any) -> str | None:
    """Return the expected values if a value is invalid for a type, else None. The value None ("not given") is valid."""
    if value is None:
        return None
    if get_origin(kind) is tuple and isinstance(value, tuple):
        return next(filter(None, (refusal(get_args(kind)[0], item) for item in value)), None)
    for limit in limits_of(kind):
        try:
            if not limit.holds(value):
                return limit.expected
        except TypeError:  # value of another type, such as text instead of a number
            return limit.expected
    return None


def field_types(cls: type) -> dict[str, Any]:
    """Return the type of each field. A field that a subclass redefines without limits keeps those of its first type."""
    types: dict[str, Any] = {}
    for owner in reversed(cls.__mro__):
        for item in vars(owner).get("__dataclass_fields__", {}).values():
            if item.name not in types or limits_of(item.type):
                types[item.name] = item.type
    return types


def values_of(settings: Any, base: type) -> dict[str, Any]:
    """Return those settings that a dataclass has fields for, by name."""
    return {item.name: getattr(settings, item.name) for item in fields(base)}


def limits_of(kind: Any) -> list[Limit]:
    """Return the limits of a type such as `Count | None`."""
    return [note for note in _annotations(kind) if isinstance(note, Limit)]


def help_of(kind: Any) -> Help | None:
    """Return the help of a field's flag; None for a field without one."""
    return next((note for note in _annotations(kind) if isinstance(note, Help)), None)


def flag_name(name: str, kind: Any) -> str:
    """Return the name of a field's flag."""
    return next((note for note in _annotations(kind) if isinstance(note, str)), name)


def plain_types(kind: Any) -> tuple[type, ...]:
    """Return the types for `isinstance`: (int, NoneType) of `Count | None`, (tuple,) of `tuple[str, ...]`."""
    if get_origin(kind) is Annotated:
        return plain_types(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(plain for part in get_args(kind) for plain in plain_types(part))
    return (get_origin(kind) or kind,)


def _annotations(kind: Any) -> list[Any]:
    if get_origin(kind) is Annotated:
        return [*kind.__metadata__, *_annotations(kind.__origin__)]
    if get_origin(kind) in (Union, types.UnionType):
        return [note for part in get_args(kind) for note in _annotations(part)]
    return []
