"""Capture of the messages of C libraries on stderr: some report corrupt data, others are noise."""

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Yield a function that returns what the process, C libraries included, wrote to stderr so far (its first 64 KiB).

    Uses a pipe, because a file fails on a full disk, and reports of corrupt data would be lost.
    """
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    real = os.dup(2)
    os.dup2(writing, 2)
    heard = bytearray()

    def messages() -> str:
        with contextlib.suppress(BlockingIOError):
            heard.extend(os.read(reading, 1 << 16))
        return heard.decode(errors="replace")

    try:
        yield messages
    finally:
        os.dup2(real, 2)
        for end in (reading, writing, real):
            os.close(end)
