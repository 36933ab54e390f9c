"""The stack on which a thread handles signals, kept from libraries that put one of theirs in its place.

OpenVINO gives the thread that compiles a network a stack of its own and frees it with the network; Python's handlers run on
it, so the next Ctrl-C would be a segmentation fault.
"""

import contextlib
import ctypes
from collections.abc import Iterator


class _SignalStack(ctypes.Structure):
    """stack_t of signal.h."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """A block after which this thread's signal stack is the one of before; where there is no such thing, any block."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "sigaltstack"):
        yield
        return
    before = _SignalStack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)
