"""Protection of a thread's signal stack from libraries that replace it.

OpenVINO sets a signal stack in the thread that compiles a network and frees it with the network. Python's handlers run
on that stack, so the next Ctrl-C would cause a segmentation fault.
"""

import contextlib
import ctypes
from collections.abc import Iterator


class _SignalStack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Restore this thread's signal stack after a block; does nothing on systems without signal stacks."""
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
