"""Ctrl-C while a program imports its packages, before `command_line.run` handles it."""

import signal


def end_quietly_on_interrupt() -> None:
    """Let Ctrl-C end the process without a traceback, unless it is ignored or handled otherwise already."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
