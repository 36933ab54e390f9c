"""An exclusive lock on an open file. The kernel releases it when the process that holds it ends, in whatever way."""

import contextlib
import errno
import fcntl
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from program_support.errors import InputError

HOLDER = re.compile(r"process (?P<process>\d{1,9}) on (?P<host>.+)")  # content of a lock file
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # some network and FUSE mounts


def lock_file(stream: IO, *, wait: bool = False) -> bool:
    """Take the lock of a file that is open for writing; return False if the file system has no locks.

    Raises:
        BlockingIOError: another process holds it, unless `wait` is set.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


@contextlib.contextmanager
def waiting_lock(path: Path, *, log: Callable[[str], None], message: str) -> Iterator[bool]:
    """Hold the lock of a file in a block, logging a message if another process holds it; False: there are no locks."""
    with path.open("a") as stream:
        try:
            locked = lock_file(stream)
        except BlockingIOError:
            log(message)
            locked = lock_file(stream, wait=True)
        yield locked


class LockedError(Exception):
    """Another process holds a lock; the text names it as far as known."""


@contextlib.contextmanager
def held_lock(path: Path) -> Iterator[IO | None]:
    """Hold the lock of a file, which names this process, in a block; yield None if the file system has no locks.

    Raises:
        LockedError: another process holds it.
        InputError: for a file that is no lock.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8", errors="replace") as stream:
        stream.seek(0)
        content = stream.read(200)
        if content and not HOLDER.fullmatch(content.strip()):
            raise InputError(f"{path}: exists and was not written by this program, which would write there; move it")
        try:
            locked = lock_file(stream)
        except BlockingIOError:
            raise LockedError(content.strip() or "another process") from None
        stream.truncate(0)
        stream.write(f"process {os.getpid()} on {platform.node()}\n")
        stream.flush()
        yield stream if locked else None
