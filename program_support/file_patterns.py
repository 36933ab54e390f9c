"""Names of files that users give as glob patterns, and names that libraries would take for one."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator

_TENSORFLOW_MAGIC = frozenset("*?[\\")


def matching_paths(pattern: str | os.PathLike[str]) -> list[str]:
    """Return the paths that match a glob pattern, sorted; what exists under its own name is not taken for a pattern."""
    pattern = os.fspath(pattern)
    end = len(pattern)
    while end > 0 and not os.path.exists(pattern[:end]):
        end = pattern.rfind("/", 0, end)
    end = max(end, 0)
    return sorted(glob.glob(glob.escape(pattern[:end]) + pattern[end:]))


def paths_beginning_with(prefix: str | os.PathLike[str], pattern: str = "*") -> list[str]:
    """Return the paths whose names begin with a prefix, continued as a glob pattern says, sorted."""
    return sorted(glob.glob(glob.escape(os.fspath(prefix)) + pattern))


@contextlib.contextmanager
def without_magic(prefix: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a folder, or a prefix of files, under a name that TensorFlow, which reads names as patterns, finds."""
    prefix = os.fspath(prefix)
    if not _TENSORFLOW_MAGIC & {*prefix}:
        yield prefix
        return
    with tempfile.TemporaryDirectory() as folder:
        for path in paths_beginning_with(prefix):
            os.symlink(os.path.abspath(path), f"{folder}/link{path.removeprefix(prefix)}")
        yield f"{folder}/link"
