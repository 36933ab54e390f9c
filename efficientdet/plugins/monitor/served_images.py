"""The monitor of serve.py: a rolling window of the served images, its metrics, and a line when the alarm changes."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Thread

import numpy as np
from prometheus_client import Gauge

from efficientdet.options.serve import ServeOptions
from efficientdet.plugins.monitor.estimates import OF_IMAGES
from efficientdet.plugins.monitor.monitoring import compared
from efficientdet.plugins.monitor.reference import read_reference, reference_path, seen_image, statistics
from efficientdet.serving.batching import Batcher, ServedModel
from object_detection.coco.results import DetectionRows
from object_detection.coco.score_calibration import ScoreMap
from program_support.atomic_files import write_text
from program_support.errors import InputError

_WINDOW = 200  # distinct images
_INTERVAL = 100  # images from one comparison to the next
_RATE = 0.005  # of false alarms of a comparison: 1 in 100 windows, each of which is compared twice
_SHARE = 0.04  # of a processor's time, at most


def monitor_served(options: ServeOptions, _: Callable[[str], ServedModel]) -> "ServedMonitor | None":
    """Return the monitor of a model with a reference; None without one, or if the model or its scores are replaced."""
    model = options.model
    if options.train_dir or options.calibrated_scores or not (model and reference_path(model).exists()):
        return None
    try:
        return ServedMonitor(model)
    except InputError as error:
        print(f"not monitored: {error}", flush=True)
        return None


class ServedMonitor:
    """Metrics of a server (`AddedRoutes`): the last images that it detected in, compared with the reference.

    A thread computes the statistics of a batch. After it, batches are left out for a time in proportion to its work.
    """

    def __init__(self, model: str):
        self._reference, self._path = read_reference(model), reference_path(model).with_suffix(".window.json")
        self._key = f"{self._reference.model} {self._reference.windows[0]}"
        self._rows = list[list[float]]()  # statistics of each image
        self._alarm, self._rests_until = False, 0.0
        try:
            if self._path.exists():
                key, alarm, rows = json.loads(self._path.read_text())
                if key != self._key:
                    raise ValueError("of another model or reference")
                self._rows = np.reshape(rows, (-1, self._reference.images.shape[1])).tolist()
                self._alarm = alarm
        except (OSError, ValueError, TypeError) as error:
            print(f"{self._path}: cannot be used ({error}); the monitor begins a new window", flush=True)
        self._new = len(self._rows)

    def routes(self) -> tuple:
        """Return no routes."""
        return ()

    @contextlib.contextmanager
    def serving(self, batcher: Batcher) -> Iterator[None]:
        """Watch the model of `batcher` in a block."""
        assert batcher.model
        self._model, labels = batcher.model, ("value", "statistic")
        self._gauge = Gauge("efficientdet_monitor", "The last images.", labels, registry=batcher.metrics.registry)
        batcher.model = replace(self._model, detect=self._detect)
        self._start([], [])
        yield
        self._thread.join()
        self._store()

    def _detect(self, images: list[np.ndarray]) -> list[DetectionRows]:
        results = self._model.detect(images)
        if time.monotonic() > self._rests_until:
            self._start(images, results)
        return results

    def _start(self, *batch: list) -> None:
        self._rests_until = math.inf
        self._thread = Thread(target=self._add, args=batch)
        self._thread.start()

    def _add(self, images: list[np.ndarray], results: list[DetectionRows]) -> None:
        try:
            start = time.thread_time()
            seen = [seen_image(image, rows) for image, rows in zip(images, results, strict=True)]
            score_map = ScoreMap(*self._reference.score_map.tolist())
            for row in statistics(seen, self._model.class_names, score_map).tolist():
                of_image = row[: len(OF_IMAGES)]  # equal for equal pixels
                if of_image not in [one[: len(OF_IMAGES)] for one in self._rows]:
                    self._rows.append(row)
            del self._rows[:-_WINDOW]
            self._new += len(images)
            if self._new >= _INTERVAL:
                self._compare()
            self._rests_until = time.monotonic() + (time.thread_time() - start) / _SHARE
        except Exception as error:  # serving continues
            self._gauge.clear()
            print(f"monitoring ends: {type(error).__name__}: {error}", flush=True)

    def _compare(self) -> None:
        self._new, count = 0, len(self._rows)
        names = [f"image {number} of {count}" for number in range(1, count + 1)]
        classes = self._model.class_names.names
        estimates, drifts, alarm = compared(self._reference, np.array(self._rows), names, classes, rate=_RATE)
        values: dict[tuple[str, str], float] = {("images", ""): count, ("alarm", ""): alarm}
        for name, one in estimates.items():
            for statistic, value in zip((name, "low", "high"), one[:3], strict=True):
                values[f"estimated_{name}", statistic] = value if one.is_trusted else math.nan
        values |= {("p_value", one.statistic): one.p_value for one in drifts}
        for labels, value in values.items():
            self._gauge.labels(*labels).set(value)
        if alarm != self._alarm:
            kind = "ALARM" if alarm else "alarm ended"
            print(f"{kind}: estimated AP on the last {count} images: {estimates['ap']}; {drifts[0]}", flush=True)
        self._alarm = alarm
        self._store()

    def _store(self) -> None:
        with contextlib.suppress(OSError):  # a folder that cannot be written, as in a container
            write_text(self._path, json.dumps([self._key, self._alarm, self._rows]))
