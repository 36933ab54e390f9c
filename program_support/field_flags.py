"""Flags that take type, limits and default from a field of a configuration class, so that these are defined once."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from program_support.checked_fields import (
    Config,
    field_types,
    help_of,
    limits_of,
    plain_types,
    refusal,
)
from program_support.errors import InputError

_DEFINE: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    tuple: flags.DEFINE_list,
    str: flags.DEFINE_string,
}


def define_flags_of(options: type, values: flags.FlagValues = flags.FLAGS) -> None:
    """Define a flag for each field of a dataclass; each has `Help` and a default."""
    kinds = field_types(options)
    for item in dataclasses.fields(options):
        note = help_of(kinds[item.name])
        assert note is not None
        shown: Any = item.default if note.default is None else note.default
        if note.repeats:
            flags.DEFINE_multi_string(item.name, shown or None, note.text, flag_values=values)
        else:
            define_flag(item.name, kinds[item.name], shown, note.text, values)


def options_of_flags(options: type[Config], values: flags.FlagValues = flags.FLAGS) -> Config:
    """Return the options that the flags state. One that is not given has the default of its field."""
    given = {}
    for name, kind in field_types(options).items():
        flag, note = values[name], help_of(kind)
        if flag.value is not None and (flag.present or not note or note.default is None):
            given[name] = tuple(flag.value) if isinstance(flag.value, list) else flag.value
    return options(**given)


def define_flag(name: str, kind: Any, default: Any, help_text: str, values: flags.FlagValues = flags.FLAGS) -> None:
    """Define a flag that accepts the values of a type, such as `Count | None`; see `checked_fields`."""
    plain = next(plain for plain in plain_types(kind) if plain in _DEFINE)
    choices = next((limit.choices for limit in limits_of(kind) if limit.choices), None)
    if choices:
        flags.DEFINE_enum(name, default, choices, help_text, flag_values=values)
        return
    _DEFINE[plain](name, list(default) if isinstance(default, tuple) else default, help_text, flag_values=values)
    if limits_of(kind):
        flags.register_validator(name, lambda value: _is_accepted(kind, value), flag_values=values)


def _is_accepted(kind: Any, value: Any) -> bool:
    if expected := refusal(kind, value):
        raise flags.ValidationError(f"expected {expected}")
    return True


def whole_numbers(texts: Sequence[str], flag: str) -> tuple[int, ...]:
    """Return the integers that a flag such as 40,50,55 lists.

    Raises:
        InputError: for anything else.
    """
    try:
        return tuple(map(int, texts))
    except ValueError as error:
        raise InputError(f"--{flag}={','.join(texts)}: expected integers such as 40,50,55") from error
