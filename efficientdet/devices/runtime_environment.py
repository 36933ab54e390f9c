"""The process of a program: TensorFlow's start-up notices, and the C library's allocator. Imports nothing slow."""

import ctypes
import gc
import os
import sys

from program_support.stderr_capture import captured_stderr

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_STEP = 256 << 20  # bytes taken from the system at a time


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


def keep_freed_memory() -> None:
    """Have freed memory used again instead of given back to the system, which clears every page of it once more.

    On a CPU the tensors of a step are allocated again each time, and glibc maps and unmaps every large one: a third of the
    time of a step of D0 at 512 pixels. The process then holds the most it ever needed. Nothing happens where the C library
    is another, or where the environment says how it is to allocate (MALLOC_ARENA_MAX and the like, GLIBC_TUNABLES).
    """
    library = ctypes.CDLL(None)
    is_told = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if is_told or not hasattr(library, "gnu_get_libc_version"):
        return
    # One arena, as those of threads give whole heaps back whatever the threshold; and nothing mapped apart from it.
    for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, _STEP)):
        library.mallopt(parameter, value)
