"""What must happen before TensorFlow is imported."""

import gc
import os
import sys

from program_support.stderr_capture import captured_stderr


def prepare_environment(*, owns_process: bool = True) -> None:
    """Import TensorFlow with its start-up notices kept off the console, among which a user's own lines would be lost.

    They are written by C++ to the standard error of the process before any level can be set, hence the detour.
    owns_process: False in a third-party process, whose objects are not exempted from garbage collection.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()  # a fifth of the import would be the search among its 300,000 objects, none of which is garbage
    try:
        with captured_stderr():
            import tensorflow  # noqa: F401
    finally:
        if owns_process:
            gc.freeze()
        if collects:
            gc.enable()
