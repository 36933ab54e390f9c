"""Start and error handling of all entry points: flags are parsed once; a user error is one line and exit code 2."""

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from absl import flags

from program_support.errors import InputError, printable
from program_support.other_flag_names import unknown_name_hint
from program_support.signals import Listener, exit_code

USER_ERROR_EXIT_CODE = 2  # absl's own is 1, which a launcher cannot distinguish from a crash
_SIGNAL_NAMES: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
REMOVED = "Removed: "  # beginning of the help of a flag that is only defined to be refused with a reason
_HELP = {"-h", "--help", "-help", "--helpshort", "--helpfull"}


def run(
    main: Callable[[], None], argv: list[str] | None = None, *, ends_at_once: bool = False, needs_reader: bool = True
) -> None:
    """Parse the flags, call `main` and exit: 0, or 2 with one line for an invalid flag or an `InputError`.

    With --help among the flags, print the help and exit with 0; --helpfull also lists removed flags. Ctrl-C exits with
    one line and code 130. Any other exception is a bug and keeps its traceback.

    ends_at_once: SIGTERM exits likewise with 143, and both signals end the process immediately, without cleanup.
    Otherwise Ctrl-C raises KeyboardInterrupt, so that `main` can clean up.

    needs_reader: False: output is dropped where its reader, such as `tee` or a launcher, was killed.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The rules of stderr: a file name need not be valid text, and a service's log has each line at once.
        sys.stdout.reconfigure(errors="backslashreplace", line_buffering=True)
    arguments = sys.argv if argv is None else argv
    program = arguments[0].rsplit("/", 1)[-1]
    for stream in () if needs_reader else (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            _drop_unread_output(stream)
    if ends_at_once:
        listener = Listener(lambda number: listener.end(number, f"{program}: ended by {_SIGNAL_NAMES[number]}"))
        listener.start()  # never stopped: interpreter shutdown takes a moment, too
    elif signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # during the imports
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _HELP & {*arguments[1:]}:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `head` closes the pipe early: end without a traceback
        print(f"{sys.modules['__main__'].__doc__}\n\n{_help(is_full='--helpfull' in arguments)}")
        sys.exit(0)
    try:
        rest = _parsed(arguments)
        if len(rest) > 1:
            raise InputError(f"unexpected argument {rest[1]!r}: every option is a flag such as --name=value")
        main()
    except (flags.Error, InputError) as error:
        print(f"{program}: error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        sys.exit(USER_ERROR_EXIT_CODE)
    except KeyboardInterrupt:
        print(f"{program}: ended by {_SIGNAL_NAMES[signal.SIGINT]}", file=sys.stderr)
        sys.exit(exit_code(signal.SIGINT))
    except Exception:
        # Printed by the interpreter, it would live on in sys.last_value, and tf.data's iterators with it, until the
        # interpreter's shutdown, where these wait forever for threads that need Python.
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def _drop_unread_output(stream: io.TextIOWrapper) -> None:
    """Continue without output, from a write or flush on that finds the reader of a stream gone."""

    def dropping(operation: Callable[..., Any]) -> Callable[..., Any]:
        def drop(*arguments: str) -> Any:
            try:
                return operation(*arguments)
            except BrokenPipeError:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
                return len(arguments[0]) if arguments else None

        return drop

    stream.write, stream.flush = dropping(stream.write), dropping(stream.flush)  # type: ignore[method-assign]


def _help(*, is_full: bool) -> str:
    """Return the help of all flags, and unless `is_full` only the number of the removed ones."""
    removed = [name for name in flags.FLAGS if (flags.FLAGS[name].help or "").startswith(REMOVED)]
    if is_full or not removed:
        return flags.FLAGS.get_help()
    for name in removed:  # the process ends after the help
        delattr(flags.FLAGS, name)
    return f"{flags.FLAGS.get_help()}\n\n{len(removed)} removed flags are not listed; --helpfull lists them."


def _parsed(arguments: list[str]) -> list[str]:
    """Return the remaining arguments; replace absl's hints for unknown flags, which may be far from the given name."""
    try:
        return flags.FLAGS(arguments)
    except flags.UnrecognizedFlagError as error:
        hint = unknown_name_hint(error.flagname, list(flags.FLAGS))
        raise InputError(f"unknown flag --{error.flagname}" + (f"; {hint}" if hint else "")) from error
