"""An exclusive lock on an open file. The kernel releases it when the process that holds it ends, in whatever way."""

import errno
import fcntl
from typing import IO

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)  # some network and FUSE mounts


def lock_file(stream: IO, *, wait: bool = False) -> bool:
    """Take the lock of a file that is open for writing; return False if the file system has no locks.

    Raises BlockingIOError if another process holds it, unless `wait` is set.
    """
    try:
        fcntl.flock(stream, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True
