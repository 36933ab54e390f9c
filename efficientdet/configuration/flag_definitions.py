"""Flags of programs, made from their options. Imports neither Keras nor TensorFlow."""

from collections.abc import Callable, Iterable
from typing import Any

from absl import flags

from efficientdet.options.removed_flags import ALIASES, GONE
from program_support.checked_fields import Config
from program_support.command_line import REMOVED
from program_support.field_flags import define_flags_of, options_of_flags


def _finish_flags(program: str) -> None:
    """Define the aliases and the removed flags of a program. Must be called after its other flags are defined."""
    for name, original in ALIASES.get(program, {}).items():
        flags.DEFINE_alias(name, original)
    for name, gone in GONE.get(program, {}).items():
        define = flags.DEFINE_bool if gone.boolean else flags.DEFINE_string
        define(name, None, f"{REMOVED}{gone.reason}.")
        flags.register_validator(
            name,
            lambda value, gone=gone: value in (None, "") or str(value) in gone.passes,
            message=f"has been removed: {gone.reason}",
        )


def program(
    name: str,
    options: type[Config],
    operation: Callable[[Config], Any],
    **choices: Callable[[], Iterable[str]],
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the functions that define a program's flags, and that run its operation with the options they state.

    The help of a flag in `choices`, which are known only when the program runs, ends with them.
    """

    def define_flags() -> None:
        define_flags_of(options)
        for flag, names in choices.items():
            flags.FLAGS[flag].help += f"{', '.join(names())}."
        _finish_flags(name)

    def main() -> None:
        operation(options_of_flags(options))

    return define_flags, main


def typed_name(name: str) -> str:
    """Return the name under which a flag was given: its own name or an alias."""
    given = [
        alias
        for aliases in ALIASES.values()
        for alias, original in aliases.items()
        if original == name and alias in flags.FLAGS and flags.FLAGS[alias].present
    ]
    return given[0] if given else name
