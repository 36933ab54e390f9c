"""Checks before a program imports packages. They need none, and run in a Python of any version."""

import importlib.util
import os
import signal
import sys

_OLDEST_PYTHON = (3, 11)
_PACKAGES = ("absl", "keras", "numpy", "rich")  # every program needs them; inspector.py runs without TensorFlow


def before_imports() -> None:
    """Let Ctrl-C end the process without a traceback while it imports, and exit with one line in a wrong environment.

    `command_line.run` handles Ctrl-C afterwards. Under a locale of another encoding, such as de_DE.ISO-8859-1, the
    program starts again in UTF-8, in which labels name files and in which TensorFlow opens them.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # neither ignored nor handled by a caller
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    missing = next((name for name in _PACKAGES if importlib.util.find_spec(name) is None), None)
    if missing or sys.version_info < _OLDEST_PYTHON:
        version, oldest = (".".join(map(str, numbers[:2])) for numbers in (sys.version_info, _OLDEST_PYTHON))
        found = f"lacks the package {missing}" if missing else f"is older than {oldest}"
        environment = os.path.relpath(os.path.join(os.path.dirname(__file__), "..", ".venv"))
        print(
            f"{os.path.basename(sys.argv[0])}: error: {sys.executable} (Python {version}) {found}; run: source "
            f"{environment}/bin/activate (bash scripts/install.sh creates it)",
            file=sys.stderr,
        )
        sys.exit(2)
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
