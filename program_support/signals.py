"""Handling of SIGINT (Ctrl-C) and SIGTERM in a thread: at once, or recorded and raised where the work may stop.

Python runs a signal handler between two of its own instructions: a compilation or a training step of minutes delays it,
and its exception can be raised where it is swallowed or only printed. So a thread reads each signal from a pipe, into
which C code writes it.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"  # progress bars hide it
_owns_process: ContextVar[bool] = ContextVar("owns_process", default=True)


@contextlib.contextmanager
def in_a_users_process() -> Iterator[None]:
    """Keep listeners from ending the process inside the block: `Listener.end` raises in the main thread instead."""
    token = _owns_process.set(False)
    try:
        yield
    finally:
        _owns_process.reset(token)


def exit_code(number: int) -> int:
    """Return the exit code that a shell reports for a process ended by a signal: 130 and 143."""
    return 128 + number


class Listener:
    """Listener that calls `handle` in a thread with the number of each SIGINT and SIGTERM, from `start` to `stop`.

    A signal that was ignored before stays ignored, as Ctrl-C is in a shell's background jobs. Outside the main thread,
    where Python accepts no handlers, no signal is handled. The previous listener, if any, is active again after `stop`,
    which returns when all received signals have been handled.
    """

    def __init__(self, handle: Callable[[int], None]):
        self._handle = handle
        self._undo, self._console = contextlib.ExitStack(), 2
        self._owns_process, self._raised = _owns_process.get(), 0

    def start(self) -> "Listener":
        """Listen from now on, and return self."""
        if threading.current_thread() is not threading.main_thread():
            return self
        self._console = os.dup(2)  # messages go here while standard error is redirected
        self._undo.callback(os.close, self._console)
        # Otherwise a later message would be written into another file.
        self._undo.callback(setattr, self, "_console", 2)
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        thread = threading.Thread(target=self._listen, args=(read_end,), daemon=True, name="signals")
        thread.start()
        self._undo.callback(thread.join)  # it may not have read all signals yet on a busy machine
        self._undo.callback(os.close, write_end)  # which ends the thread
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write_end, warn_on_full_buffer=False))
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._undo.callback(signal.signal, number, signal.signal(number, self._raise_requested))
        return self

    def stop(self) -> None:
        """Handle the signals received so far, and no further ones. Must not be called by `handle`."""
        self._undo.close()

    def end(self, number: int, line: str) -> NoReturn:
        """End the process with one line on standard error and the exit code of a signal, without cleanup.

        In a user's process, instead, KeyboardInterrupt (for SIGTERM: SystemExit) is raised in the main thread after the
        line, and the calling thread ends.
        """
        if self._owns_process:
            self.write_line(line)
            os._exit(exit_code(number))
        if not self._raised:
            self.write_line(line)
            self._raised = number
            main_thread = threading.main_thread().ident
            assert main_thread is not None  # it has started
            signal.pthread_kill(main_thread, number)  # unlike interrupt_main, it also interrupts a sleep
        raise SystemExit(exit_code(number))

    def write_line(self, line: str) -> None:
        """Write a line to standard error without taking a lock, which another thread may hold."""
        line_start = f"\r\n{_SHOW_CURSOR}" if os.isatty(self._console) else ""
        with contextlib.suppress(OSError):  # the reader is gone
            os.write(self._console, f"{line_start}{line}\n".encode())

    def _listen(self, read_end: int) -> None:
        with open(read_end, "rb", buffering=0) as stream:
            while numbers := stream.read(64):
                for number in numbers:
                    if number in SIGNALS:
                        with contextlib.suppress(SystemExit):  # raised by `end`; further signals may follow
                            self._handle(number)

    def _raise_requested(self, *_) -> None:
        """Serve as the Python handler that C needs to write the signal, and raise the exception that `end` requests."""
        if self._raised:
            raise KeyboardInterrupt if self._raised == signal.SIGINT else SystemExit(exit_code(self._raised))


class Interrupted(KeyboardInterrupt):
    """A signal was received, SIGINT (Ctrl-C) or SIGTERM."""

    def __init__(self, number: int):
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.number = number


class DeferredSignals:
    """Context in which SIGINT and SIGTERM are only recorded: `check` and the end of the block raise Interrupted.

    A second signal ends the process immediately, after a call of `on_second_signal`. Outside the main thread no signals
    are handled.
    """

    def __init__(self, *, on_second_signal: Callable[[], None] = lambda: None):
        self._on_second_signal = on_second_signal

    def __enter__(self) -> "DeferredSignals":
        self._number = 0  # the received signal's
        self._received = threading.Event()
        self._listener = Listener(self._handle).start()
        return self

    def __exit__(self, kind, *_) -> None:
        self._listener.stop()  # signals are not deferred from here on
        if kind is None:
            self.check()

    def check(self, *, seconds: float = 0.0) -> None:
        """Raise Interrupted if a signal was received, or is received within `seconds`."""
        if self._received.wait(seconds):
            raise Interrupted(self._number)

    def _handle(self, number: int) -> None:
        """Record the first signal, end the process at the second; called in the listening thread."""
        if self._received.is_set():
            self._on_second_signal()
            self._listener.end(number, "exited immediately; run the same command again to clean up and resume")
        self._number = number
        self._received.set()
