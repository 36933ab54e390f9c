"""Suppression of what C libraries print on stderr."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Discard what the process, C libraries included, writes to stderr in the block."""
    real, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(nowhere)
