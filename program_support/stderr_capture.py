"""Listens to what C libraries say on stderr: some of it is the only word of damage, some of it only noise."""

import contextlib
import os
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def captured_stderr() -> Iterator[Callable[[], str]]:
    """Yields a function that returns what the process, C libraries included, wrote to stderr so far (its first 64 KiB).

    Through a pipe: a file could find the disk full, and then no one would hear of damage.
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
