"""Graceful shutdown: SIGTERM (from Slurm, Kubernetes or a launcher) and Ctrl-C make a training save and stop."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from efficientdet.devices.distributed import World
from program_support.signals import Listener

_SAME_REQUEST_SECONDS = 0.5  # a terminal and a launcher may both deliver the same Ctrl-C

Item = TypeVar("Item")


class Interrupted(BaseException):
    """A stop request that unwinds a training to where it is saved; `except Exception` does not catch it."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__(f"stopped by signal {number}")
        self.signal = number


class StopRequest:
    """The stop request of this process; a context manager that handles signals while it is entered.

    The first signal is only recorded: within a step nothing can be saved, and all ranks must agree first. A single
    process without unsaved steps exits `patience` seconds later, even during a compilation, an evaluation or an export.
    A second signal ends the process immediately.
    """

    def __init__(
        self,
        world: World,
        *,
        saved_step: Callable[[], int],
        unsaved_steps: Callable[[], int],
        patience: float = 5.0,
        report_after: float = 2.0,
    ):
        """Prepare the request.

        Args:
          world: the processes that train together.
          saved_step: returns the step of the last checkpoint; called in another thread.
          unsaved_steps: returns the number of steps since; called in another thread.
          patience: seconds until a process without unsaved steps exits.
          report_after: seconds until a message explains the second signal, unless the training has stopped before.
        """
        self._world, self._saved_step, self._unsaved_steps = world, saved_step, unsaved_steps
        self._patience, self._report_after = patience, report_after
        self._signal, self._requested_at, self._finished = 0, 0.0, threading.Event()
        self.agreed = False  # whether the report of a step said on all ranks that one of them has a request

    def __enter__(self) -> "StopRequest":
        self._listener = Listener(self._receive).start()
        return self

    def __exit__(self, *_) -> None:
        self._finished.set()
        self._listener.stop()

    @property
    def requested(self) -> bool:
        """True once this process has received a stop signal."""
        return self._signal != 0

    def raise_if_agreed(self) -> None:
        """Raise `Interrupted` if all ranks know of a stop request."""
        if self.agreed:
            raise Interrupted(self._signal or signal.SIGTERM)

    def raise_if_requested(self) -> None:
        """Raise `Interrupted` on every rank if any rank received a stop request; all ranks must call it."""
        self.agreed = self.agreed or any(self._world.gather(self.requested))
        self.raise_if_agreed()

    def interruptible(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items up to a stop request, then call `raise_if_requested`, which synchronizes all ranks."""
        for item in items:
            if self.requested:
                break
            yield item
        self.raise_if_requested()

    def _receive(self, number: int) -> None:
        if not self.requested:
            self._requested_at, self._signal = time.monotonic(), number
            threading.Thread(target=self._wait_to_exit, daemon=True, name="stop request").start()
        elif time.monotonic() - self._requested_at > _SAME_REQUEST_SECONDS:
            self._listener.end(number, f"stopped immediately: {stop_message(self._saved_step())}")

    def _wait_to_exit(self) -> None:
        """Exit when nothing is unsaved, and report the effect of a second signal."""
        reported = False
        while not self._finished.wait(0.1):
            waited = time.monotonic() - self._requested_at
            unsaved = self._unsaved_steps()
            if waited > self._patience and unsaved <= 0 and self._world.size == 1:
                self._listener.end(self._signal, f"stop requested: {stop_message(self._saved_step())}")
            # Several ranks wait for the step even without unsaved steps: for minutes while the first step is compiled.
            if (
                waited > self._report_after
                and (unsaved > 0 or self._world.size > 1)
                and not reported
                and self._world.is_first
            ):
                reported = True
                lost = f" and lose the {unsaved} steps since the last checkpoint" if unsaved > 0 else ""
                self._listener.write_line(
                    f"stop requested: saving after the current step; send the signal again to exit immediately{lost}"
                )


def stop_message(saved_step: int) -> str:
    """Return the message about the checkpoint that an interrupted training resumes from."""
    if saved_step <= 0:
        return "no checkpoint was saved; the same command starts from scratch"
    return f"saved after step {saved_step}; --resume=auto, the default, resumes from there"
