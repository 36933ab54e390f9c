"""Flags that take type, limits and default from a field of a configuration class, so that these are defined once."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from program_support.checked_fields import (
    Config,
    Help,
    field_types,
    flag_name,
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


def define_flags_of(
    config: type, help_of_field: Mapping[str, str] | None = None, values: flags.FlagValues = flags.FLAGS
) -> None:
    """Define a flag for each field in `help_of_field`, which maps fields of the dataclass to help.

    Without it, define one for each field with `Help`.
    """
    kinds = field_types(config)
    default_of = {item.name: item.default for item in dataclasses.fields(config)}
    noted = {name: note for name, kind in kinds.items() if (note := help_of(kind))}
    stated = {name: Help(text) for name, text in (help_of_field or {}).items()}
    for name, note in (stated or noted).items():
        default = None if default_of[name] is dataclasses.MISSING else default_of[name]
        shown: Any = default if note.default is None else note.default
        if note.repeats:
            flags.DEFINE_multi_string(name, shown or None, note.text, flag_values=values)
        else:
            define_flag(flag_name(name, kinds[name]), kinds[name], shown, note.text, values)


def options_of_flags(config: type[Config], values: flags.FlagValues = flags.FLAGS) -> Config:
    """Return the options that the flags state. One that is not given has the default of its field."""
    options = {}
    for name, kind in field_types(config).items():
        flag, note = values[flag_name(name, kind)], help_of(kind)
        if flag.value is not None and (flag.present or not note or note.default is None):
            options[name] = tuple(flag.value) if isinstance(flag.value, list) else flag.value
    return config(**options)


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
