"""The log of a run: `time_log.txt` in dllogger's JSON stream format, lines on stdout, and times of activities.

A line of the log is `DLLL ` and a JSON object with the strings timestamp (seconds since 1970), elapsedtime (seconds
since the logger was created) and datetime, then type: LOG with step and data, or METADATA with metric and metadata
(https://github.com/NVIDIA/dllogger). Parsers of that format read our files.
"""

import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from efficientdet.run_log.loggers import Logger
from program_support.errors import only_warning

DEFAULT_FILE_NAME = "time_log.txt"
TRAINING_UNITS = {
    "avg_fps_training": "images/s",
    "avg_fps_training_per_GPU": "images/s",
    "avg_latency_training": "s",
    "latency_training_p50": "s",
    "latency_training_p95": "s",
    "input_wait": "%",
    "training_loss": None,
    "e2e_training_time": "s",
    "validation_accuracy_mAP": "%",
    "target_mAP": "%",
    "time_to_target": "min",
}
SPEED = "examples/sec"
INTERVAL_STEP = "PARAMETER"  # the step name of the reference's throughput lines
_RECENT = 100  # spans; steps have two or three each
_IN_STEPS = ("input", "compute", "compilation")
_STALLED = 0.2  # share of the time
_WARMUP_FRACTION = 0.1  # share of the intervals: they include compilation and cold caches

Step = int | str | Sequence[int]


class Interval(NamedTuple):
    """Some consecutive training steps, timed together, including the wait for input."""

    first_step: int
    last_step: int  # the steps first_step + 1 .. last_step
    images: int  # sum over the devices
    seconds: float
    input_seconds: float = 0.0  # part of them in which the first process waited for input


class Speed(NamedTuple):
    """Throughput of a run without its beginning."""

    images_per_second: float  # sum over the devices
    seconds_per_step: float
    p50: float  # median of the seconds per step, over intervals
    p95: float


def average_speed(intervals: Sequence[Interval]) -> Speed | None:
    """Return images per second, and mean and percentiles of seconds per step; None without intervals.

    The first tenth of them is left out, and always the first of several, which compiles.

    The reference averages the rates of the intervals, which counts a short one as much as a long one and so
    overstates the speed of an uneven run.
    """
    dropped = max(int(_WARMUP_FRACTION * len(intervals)), 1 if len(intervals) > 1 else 0)
    measured = intervals[dropped:]
    seconds = sum(interval.seconds for interval in measured)
    if seconds <= 0:
        return None
    steps = [interval.last_step - interval.first_step for interval in measured]
    each = [interval.seconds / count for interval, count in zip(measured, steps, strict=True)]
    return Speed(
        sum(interval.images for interval in measured) / seconds,
        seconds / sum(steps),
        *np.percentile(each, (50, 95)).tolist(),
    )


class Journal:
    """The log, the curves and the console lines of one run; use it as a context, or call `close`.

    With `folder` None, for all ranks except the first, nothing is written. `loggers` get its curves, images and events,
    and are closed with it; `units` are the units of logged values.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        file_name: str = DEFAULT_FILE_NAME,
        loggers: Sequence[Logger] = (),
        units: Mapping[str, str | None] = TRAINING_UNITS,
    ):
        self._started = datetime.now()
        self._units, self._loggers = dict(units), list(loggers)
        self._intervals: list[Interval] = []
        self._log = None if folder is None else _open_to_append(Path(folder) / file_name)
        for metric, unit in self._units.items():
            self._write("METADATA", {"metric": metric, "metadata": {"unit": unit}})

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; a second call does nothing."""
        if self._log:
            with only_warning(self._log.name, print):
                self._log.close()
        self._tell_loggers("close")

    def event(self, name: str, **facts: Any) -> None:
        """Pass an event to the loggers, such as "epoch_finished" with the facts epoch and images_per_second."""
        self._tell_loggers("event", name, facts)

    def print(self, text: str) -> None:
        """Print a line on the console, on the first rank only."""
        if self._log:
            print(text, flush=True)

    def log(self, step: Step, data: Mapping) -> None:
        """Log values after `step` (a number, (epoch, step), or () for the run), and print them."""
        self._write("LOG", {"step": step, "data": data})
        place = " ".join(map(str, step)) if isinstance(step, Sequence) and not isinstance(step, str) else str(step)
        values = (f"{name} {_readable(value, self._units.get(name))}" for name, value in data.items())
        self.print(" ".join(filter(None, [place, *values])))

    def curves(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars by tag such as "train/loss", after `step` steps, to the loggers and the log."""
        self._write("LOG", {"step": step, "data": values})
        self._tell_loggers("scalars", step, values)

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write images by tag, uint8 [h, w, 3], after `step` steps."""
        self._tell_loggers("images", step, images)

    def interval(self, interval: Interval) -> None:
        """Log the throughput of some steps; `finish` averages these."""
        steps = interval.last_step - interval.first_step
        self._intervals.append(interval)
        images_per_second = interval.images / interval.seconds
        self._write(
            "LOG",
            {
                "step": INTERVAL_STEP,
                "data": {
                    "Latency": f"{interval.seconds:.2f} seconds",
                    "fps": images_per_second,
                    "steps": (interval.first_step, interval.last_step),
                    "images": interval.images,
                    "seconds": interval.seconds,
                    "input_seconds": interval.input_seconds,
                },
            },
        )
        speeds = {"global_step/sec": steps / interval.seconds, SPEED: images_per_second}
        self._tell_loggers("scalars", interval.last_step, speeds)

    def validation(self, epoch: int, *, step: int, average_precision: float) -> None:
        """Log the COCO AP (0 .. 1, or -1) of an epoch, in percent as the reference does."""
        self.log((), {"epoch": epoch, "validation_accuracy_mAP": round(100 * average_precision, 2)})
        self.curves(step, {"validation/AP": average_precision})

    def finish(
        self,
        *,
        training_loss: float | None,
        seconds: float,
        devices: int,
        input_wait: float = 0.0,
        goal: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Log and return the averages of the run, of `seconds` in total; loss and throughput only if steps were done.

        `input_wait` is the share of the last steps' time, 0 .. 1; `goal` has the target (target_mAP) and the time until
        it was reached (time_to_target).
        """
        loss = {} if training_loss is None else {"training_loss": training_loss}
        averages = {**loss, "e2e_training_time": seconds, **(goal or {})}
        speed = average_speed(self._intervals)
        if speed:
            averages = {
                "avg_fps_training": speed.images_per_second,
                "avg_fps_training_per_GPU": speed.images_per_second / devices,
                "avg_latency_training": speed.seconds_per_step,
                "latency_training_p50": speed.p50,
                "latency_training_p95": speed.p95,
                "input_wait": 100 * input_wait,
                **averages,
            }
        self.log((), averages)
        return averages

    def _tell_loggers(self, method: str, *arguments: Any) -> None:
        """Call a method of every logger; one that fails is left out from then on."""
        for logger in list(self._loggers):
            with only_warning(f"the logger {logger.name} ends", self.print):
                getattr(logger, method)(*arguments)
                continue
            self._loggers.remove(logger)

    def _write(self, kind: str, content: dict) -> None:
        if not self._log:
            return
        now = datetime.now()
        line = {
            "timestamp": str(now.timestamp()),
            "elapsedtime": str((now - self._started).total_seconds()),
            "datetime": now.isoformat(sep=" ", timespec="microseconds"),
            "type": kind,
            **content,
        }
        self._log.write(f"DLLL {json.dumps(_plain(line))}\n")


def read_curves(path: str | Path) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) by tag of a log; for a step that was done twice, the later value."""
    curves: dict[str, dict[int, float]] = {}
    for entry in read_log(path):
        for step, tag, value in _points(entry):
            curves.setdefault(tag, {})[step] = value
    return {tag: sorted(points.items()) for tag, points in curves.items()}


def read_intervals(path: str | Path) -> list[Interval]:
    """Return the intervals of a log in order."""
    return [
        Interval(data["steps"][0], data["steps"][1], data["images"], data["seconds"], data["input_seconds"])
        for entry in read_log(path)
        if entry.get("step") == INTERVAL_STEP and "images" in (data := entry["data"])
    ]


def read_log(path: str | Path) -> Iterator[dict]:
    """Yield the lines of a log as objects, without a line truncated by a crash; nothing if there is no file."""
    with contextlib.suppress(FileNotFoundError), Path(path).open(encoding="utf-8", errors="replace") as log:
        for line in log:
            with contextlib.suppress(ValueError):
                if isinstance(entry := json.loads(line.removeprefix("DLLL ")), dict):
                    yield entry


def _points(entry: dict) -> list[tuple[int, str, float]]:
    """Return (step, tag, value) of a line of the log."""
    step, data = entry.get("step"), entry.get("data", {})
    if step == INTERVAL_STEP:
        return [(data["steps"][1], SPEED, float(data["fps"]))]
    return [(step, tag, float(value)) for tag, value in data.items() if "/" in tag] if isinstance(step, int) else []


def _open_to_append(path: Path):
    """Open with line buffering, so that a crash loses no line; first end a line truncated by an earlier crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = path.open("ab+")
    if stream.tell() and (stream.seek(-1, os.SEEK_END), stream.read())[1] != b"\n":
        stream.write(b"\n")
    stream.close()
    return path.open("a", encoding="utf-8", buffering=1)


def _plain(value):
    """Return a value for strict JSON: arrays as lists, scalars as numbers, non-finite ones as "nan", "inf", "-inf"."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _readable(value, unit: str | None) -> str:
    """Return a value with five digits and its unit; seconds without an exponent."""
    form = ".0f" if unit == "s" and isinstance(value, float) and value >= 1e5 else ".5g"
    shown = f"{value:{form}}" if isinstance(value, float | np.floating) else str(value)
    return f"{shown} {unit}" if unit else shown


_ADVICE = {
    "reading": "use local or faster storage",
    "decoding": "give each process more CPU cores, or store smaller images",
    "assembling": "one core forms the batches; start one process per device",
    "copying": "the link to the devices is full; use smaller images",
}


def input_stall(share: float, bottleneck: str) -> str:
    """Return a warning for a training that waits for its input for a large share of the time, else an empty string."""
    if share < _STALLED:
        return ""
    return (
        f"waiting for input {share:.0%} of the time: {bottleneck} is the bottleneck; {_ADVICE[bottleneck]} (python "
        "benchmarks/input.py measures the throughput)"
    )


class Stopwatch:
    """Seconds by the name of an activity."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._totals: dict[str, float] = {}
        self._spans: deque[tuple[str, float]] = deque(maxlen=_RECENT)

    def now(self) -> float:
        """Return the current time in seconds."""
        return self._clock()

    @contextlib.contextmanager
    def measuring(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a name."""
        start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            self._totals[name] = self._totals.get(name, 0.0) + seconds
            if name in _IN_STEPS:
                self._spans.append((name, seconds))

    def total(self, name: str) -> float:
        """Return the seconds of a name since the start."""
        return self._totals.get(name, 0.0)

    def totals(self) -> dict[str, float]:
        """Return seconds by name since the start."""
        return dict(self._totals)

    def recent_share(self, name: str) -> float:
        """Return the share of a name, 0 .. 1, in the last hundred spans of steps, without the time between steps."""
        everything = sum(seconds for _, seconds in self._spans)
        return sum(seconds for span, seconds in self._spans if span == name) / everything if everything else 0.0
