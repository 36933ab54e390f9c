"""Process-wide settings of TensorFlow, of the C library's allocator and of signals. Imports nothing slow."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

from program_support.silenced_stderr import silenced_stderr

# Constants of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_STEP = 256 << 20  # bytes taken from the system at a time


def prepare_environment(*, owns_process: bool = True) -> None:
    """Import TensorFlow with oneDNN's kernels and without its start-up messages on the console.

    C++ code writes them to the standard error of the process before a log level can be set, so the file descriptor is
    redirected. TensorFlow itself uses oneDNN only on processors with AVX-512 VNNI, but convolutions, batch norm and
    their gradients are faster with it on others too.
    owns_process: False in a third-party process, whose objects are not exempted from garbage collection.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stderr.flush()
    collects = gc.isenabled()
    gc.disable()  # garbage collection would take a fifth of the import and find nothing
    try:
        with silenced_stderr():
            import tensorflow  # noqa: F401
    finally:
        if owns_process:
            gc.freeze()
        if collects:
            gc.enable()


def keep_freed_memory() -> None:
    """Reuse freed memory instead of returning it to the system, which would clear every page again.

    On a CPU the tensors of a step are allocated again each time, and glibc maps and unmaps every large one: a third of
    the time of a step of D0 at 512 pixels. The process then keeps its peak memory. Nothing is done with another C
    library, or if the environment configures the allocator (MALLOC_ARENA_MAX and similar variables, GLIBC_TUNABLES).
    """
    library = ctypes.CDLL(None)
    is_configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if is_configured or not hasattr(library, "gnu_get_libc_version"):
        return
    # One arena, because thread arenas return heaps regardless of the threshold, and no separate mappings.
    for parameter, value in ((_ARENA_MAX, 1), (_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, _STEP)):
        library.mallopt(parameter, value)


class _SignalStack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restore this thread's signal stack after a block; does nothing on systems without signal stacks.

    OpenVINO sets a signal stack in the thread that compiles a network and frees it with the network. Python's handlers
    run on that stack, so the next Ctrl-C would cause a segmentation fault.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "sigaltstack"):
        yield
        return
    previous = _SignalStack()
    library.sigaltstack(None, ctypes.byref(previous))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(previous), None)
