"""Progress and remaining time of a run: a bar on a terminal, a line every ten seconds in a log."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as RichProgress

LINE_PERIOD_SECONDS = 10.0
_RATE_SECONDS = 60.0  # averaging period of the rate, so that compilation and a slow start do not count for long


class Rate:
    """Steps and images per second over the last minute."""

    def __init__(self, now: float):
        self._samples = deque([(now, 0, 0)])  # time, steps, images

    def add(self, now: float, *, steps: int, images: int) -> None:
        """Record the steps and images done since the start, at a monotonic time in seconds."""
        # One sample a second is enough, and bounds the memory in a fast loop.
        if len(self._samples) > 1 and now - self._samples[-2][0] < 1.0:
            self._samples.pop()
        self._samples.append((now, steps, images))
        while len(self._samples) > 2 and now - self._samples[1][0] >= _RATE_SECONDS:
            self._samples.popleft()

    def per_second(self) -> tuple[float, float] | None:
        """Return (steps, images) per second; None if still unknown."""
        (start, first_steps, first_images), (end, steps, images) = self._samples[0], self._samples[-1]
        if end <= start or steps == first_steps:
            return None
        return (steps - first_steps) / (end - start), (images - first_images) / (end - start)


class Progress:
    """Progress of `total` steps on stderr, used as a context manager; total None: unknown.

    On a terminal, output of other code appears above the bar.

    Args:
        title: name of the run in the output.
        total: number of steps.
        steps_per_epoch: splits the count into epochs.
        done: steps done by an earlier run.
        noun: name of a step.
        stream: default: stderr.
        clock: seconds, monotonic.
        silent: print nothing; for all processes except the first.
        slow_start: the run is short and starts slowly; the rate is measured from the first step, and no line is printed
            within ten seconds of it.
        first_counts: include the first step in the rate; False if it is compiled.
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
        first_counts: bool = True,
        rate_of: str = "images",
    ):
        self._silent, self._slow_start, self._starting = silent, slow_start, slow_start or not first_counts
        self._title, self._total, self._steps_per_epoch, self._noun = title, total, steps_per_epoch, noun
        self._rate_of = rate_of
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._first, self._done, self._images = done, done, 0
        self._values: dict[str, str] = {}
        self._paused = 0.0  # seconds
        self._rate = Rate(clock())
        self._line_time, self._line_done = -LINE_PERIOD_SECONDS + clock(), -1
        console = Console(file=self._stream)
        interactive = _is_interactive(console) and not silent
        self._bar = _rich_bar(console, stdout_too=sys.stdout.isatty()) if interactive else None
        if self._bar:
            self._task = self._bar.add_task("", total=total, completed=done, state=title, remaining="")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self._bar:
            self._draw()
            self._bar.stop()
        elif self._line_done != self._done and not (self._slow_start and self._line_done < 0):
            self._write_line()

    def advance(self, steps: int = 1, *, images: int = 0) -> None:
        """Record `steps` further steps and their images; cheap enough for every step."""
        self._done += steps
        self._images += images
        if self._starting:
            if steps:
                self._starting = False
                if self._slow_start:
                    self._line_time = self._clock()
                self.go_back(self._done)
            return
        self._rate.add(self._clock() - self._paused, steps=self._done - self._first, images=self._images)
        self._draw()

    def go_back(self, done: int) -> None:
        """Reset the number of steps to `done`; the rate restarts."""
        self._first, self._done, self._images = done, done, 0
        self._rate = Rate(self._clock() - self._paused)
        self._draw()

    def end_at(self, total: int) -> None:
        """Change the total number of steps."""
        self._total = total
        if self._bar:
            self._bar.update(self._task, total=total)

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
        return " ".join(filter(None, [self._state(), self._remaining()]))

    def _state(self) -> str:
        parts = [f"{self._title}:", *self._place(), *(f"{name} {value}" for name, value in self._values.items())]
        rate = self._rate.per_second()
        if rate and rate[1]:
            parts.append(f"{rate[1]:.1f} {self._rate_of}/s")
        return " ".join(parts)

    def _remaining(self) -> str:
        rate = self._rate.per_second()
        return f"ETA {duration(max(self._total - self._done, 0) / rate[0])}" if rate and self._total is not None else ""

    def _place(self) -> list[str]:
        if not self._steps_per_epoch or self._total is None:
            return [f"{self._noun} {self._done}" + ("" if self._total is None else f"/{self._total}")]
        epochs = -(-self._total // self._steps_per_epoch)
        epoch = max(-(-self._done // self._steps_per_epoch), 1)  # the last step of an epoch belongs to it
        step = self._done - (epoch - 1) * self._steps_per_epoch
        return [f"epoch {epoch}/{epochs}", f"{self._noun} {step}/{self._steps_per_epoch}"]

    def _draw(self) -> None:
        if self._bar:
            self._bar.update(self._task, completed=self._done, state=self._state(), remaining=self._remaining())
        elif self._clock() - self._line_time >= LINE_PERIOD_SECONDS:
            self._write_line()

    def _write_line(self) -> None:
        if not self._silent:
            print(self.line(), file=self._stream, flush=True)
        self._line_time, self._line_done = self._clock(), self._done


def duration(seconds: float) -> str:
    """Return minutes and seconds, with hours if there are any: 1:23, 2:00:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _is_interactive(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _rich_bar(console: Console, *, stdout_too: bool) -> RichProgress:
    # A line too long for the screen is cut off at its end, so the remaining time precedes the state. rich redirects
    # stdout to its own console, which is right for a terminal but wrong for a stdout written to a file.
    return RichProgress(
        BarColumn(bar_width=12),
        TaskProgressColumn(),
        TextColumn("{task.fields[remaining]}"),
        TextColumn("{task.fields[state]}", markup=False),
        console=console,
        redirect_stdout=stdout_too,
        refresh_per_second=4,
    )
