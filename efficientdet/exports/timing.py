"""Latency of exported files: of detection in an image, and of network and post-processing apart."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from efficientdet.checkpoints.restore import Restored
from efficientdet.exports.export_format import ExportFormat

_WARM_UP_RUNS = 3


def times(run: Callable[[], object], *, runs: int) -> tuple[float, float]:
    """Return median and 99th percentile in milliseconds."""
    seconds = []
    for _ in range(_WARM_UP_RUNS + runs):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    timed = 1e3 * np.array(seconds[_WARM_UP_RUNS:])
    return round(float(np.median(timed)), 2), round(float(np.percentile(timed, 99)), 2)


def medians_in_turns(runs_of: Sequence[Callable[[], object]], *, runs: int) -> list[float]:
    """Return the median milliseconds of functions that run in turns, so that they meet the same load.

    Each is timed directly after another run of it, as the caches of a processor hold the data of the previous one.
    """
    milliseconds = np.array([[_second_run(run) for run in runs_of] for _ in range(runs)])
    return np.median(milliseconds, axis=0).round(2).tolist()


def _second_run(run: Callable[[], object]) -> float:
    run()
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def split_times(
    restored: Restored, form: ExportFormat, path: Path, image: np.ndarray, *, runs: int
) -> tuple[float | None, float | None]:
    """Return milliseconds of network and post-processing of an image, without resizing it.

    Both are None if the file cannot be divided. A part that does not run alone is the
    difference to the complete file.
    """
    images, sizes, _ = (np.asarray(part)[None] for part in restored.resize(image))
    parts = form.parts(restored, path, (images, sizes))
    if not parts:
        return None, None
    took = {part: times(run, runs=runs)[0] for part, run in parts.items()}
    if "complete" in took:
        rest = round(max(took["complete"] - took.get("network", 0.0) - took.get("postprocessing", 0.0), 0.0), 2)
        took = {"network": rest, "postprocessing": rest, **took}
    return took["network"], took["postprocessing"]
