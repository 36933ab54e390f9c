"""The flags of a program: those of its options, aliases, and removed ones, which are refused with a reason."""

from collections.abc import Callable
from pkgutil import resolve_name

from absl import flags

from efficientdet.options.removed_flags import ALIASES, GONE
from program_support.command_line import REMOVED, define_flags_of, options_of_flags


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


def remove_flags() -> None:
    """Remove all flags but those of absl, before this process becomes another program."""
    defined = flags.FLAGS.flags_by_module_dict().items()
    for flag in [flag for module, of_module in defined if not module.startswith("absl.") for flag in of_module]:
        delattr(flags.FLAGS, flag.name)


def program(
    name: str,
    options: type,
    operation: Callable[[], Callable],
    **choices: str,
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return the functions that define a program's flags, and that run its operation with the options they state.

    Args:
        name: the program's in ALIASES and GONE.
        options: class of its options.
        operation: returns the function that runs; it imports it, as --help does not need it.
        **choices: module:object of the names, or of a function that returns them, with which the help of a flag ends.
    """

    def define_flags() -> None:
        define_flags_of(options)
        for flag, place in choices.items():
            names = resolve_name(place)
            flags.FLAGS[flag].help += f"{', '.join(names() if callable(names) else names)}."
        _finish_flags(name)

    def main() -> None:
        operation()(options_of_flags(options))

    return define_flags, main
