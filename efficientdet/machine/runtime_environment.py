"""What must happen before TensorFlow is imported."""

import os
import sys


def prepare_environment() -> None:
    """Import TensorFlow with its start-up notices kept off the console, among which a user's own lines would be lost.

    They are written by C++ to the standard error of the process before any level can be set, hence the detour.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
