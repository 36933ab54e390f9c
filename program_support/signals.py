"""SIGINT (Ctrl-C) and SIGTERM, heard at once wherever a program is.

Python runs a handler between two of its own instructions: a compilation or a training step of minutes keeps it waiting, and
what it raises can come up where it is swallowed or printed. So a thread waits at a pipe into which C notes each signal.
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
    """A block whose listeners never end the process: `Listener.end` raises in the main thread instead."""
    token = _owns_process.set(False)
    try:
        yield
    finally:
        _owns_process.reset(token)


def exit_code(number: int) -> int:
    """What a shell reports for a process that a signal ended: 130 and 143."""
    return 128 + number


class Listener:
    """Calls `heard` in a thread of its own with the number of each SIGINT and SIGTERM that comes, from `start` to `stop`.

    A signal that was ignored before (what a shell starts in the background ignores Ctrl-C) stays so; outside the main
    thread, where Python takes no handlers, nothing is heard. The listener before, if any, hears again after `stop`, which
    returns when all that came has been heard.
    """

    def __init__(self, heard: Callable[[int], None]):
        self._heard = heard
        self._undo, self._console = contextlib.ExitStack(), 2
        self._owns_process, self._raised = _owns_process.get(), 0

    def start(self) -> "Listener":
        """Listen from now on, and return self."""
        if threading.current_thread() is not threading.main_thread():
            return self
        self._console = os.dup(2)  # for while standard error is led elsewhere
        self._undo.callback(os.close, self._console)
        self._undo.callback(setattr, self, "_console", 2)  # or who tells something later would write into another file
        noted, note = os.pipe()
        os.set_blocking(note, False)
        thread = threading.Thread(target=self._listen, args=(noted,), daemon=True, name="signals")
        thread.start()
        self._undo.callback(thread.join)  # on a busy machine it may not have read yet what was noted
        self._undo.callback(os.close, note)  # upon which the thread ends
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(note, warn_on_full_buffer=False))
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._undo.callback(signal.signal, number, signal.signal(number, self._left_to_the_thread))
        return self

    def stop(self) -> None:
        """Hear what has come, and nothing any more. Not to be called by `heard`."""
        self._undo.close()

    def end(self, number: int, line: str) -> NoReturn:
        """End the process with one line on standard error and the exit code of a signal; nothing is unwound.

        In a user's process the line is followed by KeyboardInterrupt, of SIGTERM by SystemExit, in the main thread, and the
        thread that calls this ends.
        """
        if self._owns_process:
            self.tell(line)
            os._exit(exit_code(number))
        if not self._raised:
            self.tell(line)
            self._raised = number
            signal.pthread_kill(threading.main_thread().ident, number)  # unlike interrupt_main, it also ends a sleep
        raise SystemExit(exit_code(number))

    def tell(self, line: str) -> None:
        """A line on standard error, whatever other threads hold."""
        before = f"\r\n{_SHOW_CURSOR}" if os.isatty(self._console) else ""
        with contextlib.suppress(OSError):  # who would have read it is gone
            os.write(self._console, f"{before}{line}\n".encode())

    def _listen(self, noted: int) -> None:
        with open(noted, "rb", buffering=0) as stream:
            while numbers := stream.read(64):
                for number in numbers:
                    if number in SIGNALS:
                        with contextlib.suppress(SystemExit):  # of `end`; more signals may come
                            self._heard(number)

    def _left_to_the_thread(self, *_) -> None:
        """A handler in Python must stand there for C to note the signal; it raises what `end` asks for."""
        if self._raised:
            raise KeyboardInterrupt if self._raised == signal.SIGINT else SystemExit(exit_code(self._raised))
