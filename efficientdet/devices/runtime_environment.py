"""What must happen before TensorFlow is imported."""

import os
import sys

from program_support.stderr_capture import captured_stderr


def prepare_environment() -> None:
    """Import TensorFlow with its start-up notices kept off the console, among which a user's own lines would be lost.

    They are written by C++ to the standard error of the process before any level can be set, hence the detour.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    with captured_stderr():
        import tensorflow  # noqa: F401
