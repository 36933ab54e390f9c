"""How every entry point starts and fails: flags parsed once, a user's mistake is one line and exit code 2."""

import sys
from collections.abc import Callable

from absl import flags

from object_detection.errors import InputError, nearest_name

USER_ERROR_EXIT_CODE = 2  # absl's own is 1, which a launcher cannot tell from a crash
_HELP = {"-h", "--help", "-help", "--helpshort", "--helpfull"}


def run(main: Callable[[], None], argv: list[str] | None = None) -> None:
    """Parse the flags, call `main` and exit: 0, or 2 with one line for a wrong flag or an `InputError`.

    With --help among the flags says what they are and exits with 0. Any other exception is a bug of ours and keeps its
    traceback.
    """
    arguments = sys.argv if argv is None else argv
    if _HELP & {*arguments[1:]}:
        print(f"{sys.modules['__main__'].__doc__}\n\n{flags.FLAGS.get_help()}")
        sys.exit(0)
    try:
        rest = _parsed(arguments)
        if len(rest) > 1:
            raise InputError(f"unexpected argument {rest[1]!r}: every option is a flag such as --name=value")
        main()
    except (flags.Error, InputError) as error:
        print(f"{arguments[0].rsplit('/', 1)[-1]}: error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)


def _parsed(arguments: list[str]) -> list[str]:
    """What is left of the arguments; absl's own hints at an unknown flag name some that are far from it."""
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        nearest = nearest_name(error.flagname, flags.FLAGS)
        hint = f"; the nearest is --{nearest}" if nearest else ""
        raise InputError(f"there is no flag --{error.flagname}{hint}") from error
