"""Progress and remaining time of a run: a bar on a terminal, a line every ten seconds in a log."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

LINE_PERIOD_SECONDS = 10.0
_DRAWING_SECONDS = 0.25
_RATE_SECONDS = 300.0  # averaging period of the rate, at most 1,000 steps; rich knows no rate of longer steps


class Progress:
    """Progress of `total` steps on stderr, used as a context manager; total None: unknown.

    The first step is not part of the rate: it is compiled, or starts processes. On a terminal, output of other code
    appears above the bar.

    Args:
        title: name of the run in the output.
        total: number of steps.
        steps_per_epoch: splits the count into epochs.
        done: steps done by an earlier run.
        noun: name of a step.
        stream: default: stderr.
        clock: seconds, monotonic.
        silent: print nothing; for all processes except the first.
        slow_start: no line is printed until ten seconds after the first step, within which a short run ends.
        rate_of: name of the images.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int | None,
        steps_per_epoch: int | None = None,
        done: int = 0,
        noun: str = "step",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        silent: bool = False,
        slow_start: bool = False,
        rate_of: str = "images",
    ):
        self._title, self._total, self._steps_per_epoch, self._noun = title, total, steps_per_epoch, noun
        self._stream, self._clock, self._silent, self._rate_of = stream or sys.stderr, clock, silent, rate_of
        self._done, self._paused = done, 0.0  # steps, seconds
        self._values: dict[str, str] = {}
        self._line_time, self._line_done = math.inf if slow_start else -math.inf, -1
        console = Console(file=self._stream)
        self._is_drawn = console.is_terminal and not console.is_dumb_terminal and not silent
        # A line too long for the screen is cut off at its end, so the remaining time precedes the state. rich
        # redirects stdout to its own console, which is right for a terminal but wrong for a stdout in a file.
        self._bar = RichProgress(
            BarColumn(bar_width=12),
            TaskProgressColumn(),
            TextColumn("{task.fields[remaining]}"),
            TextColumn("{task.fields[state]}", markup=False),
            console=console,
            redirect_stdout=sys.stdout.isatty(),
            refresh_per_second=4,
            speed_estimate_period=_RATE_SECONDS,
            get_time=lambda: clock() - self._paused,
        )
        self._steps = self._bar.add_task("", total=total, completed=done, state=title, remaining="")
        self._images = self._bar.add_task("", total=None, visible=False, state="", remaining="")

    def __enter__(self) -> "Progress":
        if self._is_drawn:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._is_drawn:
            self._write_line()
            self._bar.stop()
        elif self._line_done != self._done and (self._line_done >= 0 or self._line_time == -math.inf):
            self._write_line()

    def advance(self, steps: int = 1, *, images: int = 0) -> None:
        """Record `steps` further steps and their images; cheap enough for every step."""
        if steps:  # waiting for the first one is no part of the rate
            self._done += steps
            self._bar.advance(self._steps, steps)
            self._bar.advance(self._images, images)
            self._line_time = min(self._line_time, self._clock())
        self._draw()

    def end_at(self, total: int) -> None:
        """Change the total number of steps."""
        self._total = self._bar.tasks[0].total = total  # by `update`, rich would forget the rate

    @contextlib.contextmanager
    def pausing(self) -> Iterator[None]:
        """Exclude the time of the block from the rate, such as that of an evaluation."""
        start = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - start

    def show(self, **values: float | str) -> None:
        """Set values to display, such as loss=1.23; plain numbers, because this does not wait for a device."""
        self._values |= {name: value if isinstance(value, str) else f"{value:.4g}" for name, value in values.items()}

    def line(self) -> str:
        """Return a line such as `train: epoch 3/20 step 120/600 loss 1.23 12.3 images/s ETA 1:23`."""
        return " ".join(filter(None, self._state_and_remaining()))

    def _state_and_remaining(self) -> tuple[str, str]:
        parts = [f"{self._title}:", *self._place(), *(f"{name} {value}" for name, value in self._values.items())]
        steps_per_second, images_per_second = (task.speed for task in self._bar.tasks)
        if not steps_per_second:
            return " ".join(parts), ""
        if images_per_second:
            parts.append(f"{images_per_second:.1f} {self._rate_of}/s")
        remaining = max((self._total or 0) - self._done, 0) / steps_per_second
        return " ".join(parts), "" if self._total is None else f"ETA {duration(remaining)}"

    def _place(self) -> list[str]:
        if not self._steps_per_epoch or self._total is None:
            return [f"{self._noun} {self._done}" + ("" if self._total is None else f"/{self._total}")]
        epochs = -(-self._total // self._steps_per_epoch)
        epoch = max(-(-self._done // self._steps_per_epoch), 1)  # the last step of an epoch belongs to it
        step = self._done - (epoch - 1) * self._steps_per_epoch
        return [f"epoch {epoch}/{epochs}", f"{self._noun} {step}/{self._steps_per_epoch}"]

    def _draw(self) -> None:
        if self._clock() - self._line_time >= (_DRAWING_SECONDS if self._is_drawn else LINE_PERIOD_SECONDS):
            self._write_line()

    def _write_line(self) -> None:
        if self._is_drawn:
            state, remaining = self._state_and_remaining()
            self._bar.update(self._steps, state=state, remaining=remaining)
        elif not self._silent:
            print(self.line(), file=self._stream, flush=True)
        self._line_time, self._line_done = self._clock(), self._done


def duration(seconds: float) -> str:
    """Return minutes and seconds, with hours if there are any: 1:23, 2:00:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
