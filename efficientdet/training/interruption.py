"""A polite end: SIGTERM (Slurm, Kubernetes, a launcher whose other process died) and Ctrl-C ask a training to save and stop."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from efficientdet.devices.distributed import World
from program_support.signals import Listener, exit_code

INTERRUPTED_EXIT_CODE = exit_code(signal.SIGTERM)  # 143: everything is saved, start the same command again
_SAME_REQUEST_SECONDS = 0.5  # a terminal and a launcher may both pass one Ctrl-C on

Item = TypeVar("Item")


class Interrupted(BaseException):
    """Unwinds a training up to where it is saved; no `except Exception` takes it for an error."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__(f"stopped by signal {number}")
        self.signal = number


class StopRequest:
    """Whether this process was asked to stop; listens while it is entered.

    The first signal is only noted: in the middle of a step nothing can be saved, and all ranks must agree first. Where
    nothing would be lost by it a process that trains alone ends `patience` seconds later, whatever keeps it: a compilation,
    the batch of an evaluation, an export. A second signal ends it at once.
    """

    def __init__(self, world: World, *, saved_step: Callable[[], int], unsaved_steps: Callable[[], int],
                 patience: float = 5.0, report_after: float = 2.0):
        """`saved_step` of the last checkpoint, and `unsaved_steps` since, are called in another thread. `patience`: seconds
        until a process in which nothing would be lost ends; `report_after`: seconds until a message says what a second signal
        does, as a request that is met before needs none."""
        self._world, self._saved_step, self._unsaved_steps = world, saved_step, unsaved_steps
        self._patience, self._report_after = patience, report_after
        self._number, self._heard_at, self._ended = 0, 0.0, threading.Event()

    def __enter__(self) -> "StopRequest":
        self._listener = Listener(self._hear).start()
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        self._listener.stop()

    @property
    def requested(self) -> bool:
        """Whether this process was asked."""
        return self._number != 0

    def heed(self) -> None:
        """Raises `Interrupted` on every rank if any was asked to stop; to be called by all."""
        if any(self._world.gather(self.requested)):
            raise self.interrupted()

    def interrupted(self) -> Interrupted:
        """What ends this rank, whether it or another one was asked."""
        return Interrupted(self._number or signal.SIGTERM)

    def watched(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items up to the stop request; at their end, where all ranks meet, `heed`."""
        for item in items:
            if self.requested:
                break
            yield item
        self.heed()

    def _hear(self, number: int) -> None:
        if not self.requested:
            self._heard_at, self._number = time.monotonic(), number
            threading.Thread(target=self._hurry, daemon=True, name="stop request").start()
        elif time.monotonic() - self._heard_at > _SAME_REQUEST_SECONDS:
            self._listener.end(number, f"stopped immediately: {stop_message(self._saved_step())}")

    def _hurry(self) -> None:
        """See to it that the process ends."""
        reported = False
        while not self._ended.wait(0.1):
            waited = time.monotonic() - self._heard_at
            unsaved = self._unsaved_steps()
            if waited > self._patience and unsaved <= 0 and self._world.size == 1:
                self._listener.end(self._number, f"stop requested: {stop_message(self._saved_step())}")
            # Several ranks wait for the step also where nothing would be lost: for minutes, while the first one is compiled.
            if waited > self._report_after and (unsaved > 0 or self._world.size > 1) and not reported and self._world.is_first:
                reported = True
                lost = f" and lose the {unsaved} steps since the last checkpoint" if unsaved > 0 else ""
                self._listener.tell("stop requested: saving after the current step; send the signal again to exit "
                                    f"immediately{lost}")


def stop_message(saved_step: int) -> str:
    """What remains of a training that was interrupted."""
    if saved_step <= 0:
        return "no checkpoint was saved; the same command starts from scratch"
    return f"saved after step {saved_step}; --resume=auto, the default, resumes from there"
