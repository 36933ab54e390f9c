"""Child processes that heed Ctrl-C, although what a shell starts in the background inherits that it is ignored."""

import sys

# Not by `preexec_fn`, whose fork of a process in which JAX was imported is warned of
_HEEDING = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"


def heeding_ctrl_c(command: list[str]) -> list[str]:
    """The command, a program's path first, to be started in place of itself; the process keeps its number."""
    return [sys.executable, "-S", "-c", _HEEDING, *command]
