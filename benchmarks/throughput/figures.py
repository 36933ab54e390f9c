"""Figures of a cell, read from the logs of the programs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from efficientdet.run_log.journal import average_speed, read_intervals, read_log

_ENOUGH_DROPPED, _ENOUGH_TIMED = 100, 200


class Figures(NamedTuple):
    """Measured figures of a cell."""

    images_per_second: float  # of all GPUs
    p50_ms: float  # of a step
    p95_ms: float
    memory_bytes: int  # largest of all processes: GPU memory, or host memory on a CPU
    input_share: float | None  # share of the timed steps spent waiting for input; None for inference
    arithmetic_share: float  # of the multiply-adds per second of a matrix product of this precision
    multiply_adds_per_image: int  # of inference, or of a training step
    dropped_steps: int
    timed_steps: int
    device: str
    load_average: float

    @property
    def is_short(self) -> bool:
        """Return whether too few steps were dropped or timed for a reliable figure."""
        return self.dropped_steps < _ENOUGH_DROPPED or self.timed_steps < _ENOUGH_TIMED


def training_figures(log: Path, *, dropped: int) -> Figures | None:
    """Return the figures in the log of `train.py --benchmark`; None if the log is incomplete."""
    intervals = read_intervals(log)
    speed = average_speed(intervals, dropped=dropped)
    machine = next(
        (entry["data"] for entry in read_log(log) if "machine_multiply_adds_per_second" in entry.get("data", {})), None
    )
    if speed is None or machine is None:
        return None
    timed = intervals[dropped:]
    waited = sum(interval.input_seconds for interval in timed) / sum(interval.seconds for interval in timed)
    return Figures(
        images_per_second=speed.images_per_second,
        p50_ms=1000 * speed.p50,
        p95_ms=1000 * speed.p95,
        input_share=waited,
        dropped_steps=dropped,
        timed_steps=len(timed),
        **_machine_figures(machine, speed.images_per_second),
    )


def inference_figures(report: Path, *, dropped: int) -> Figures | None:
    """Return the figures in the report of `inspector.py --mode=benchmark`; None if there is none."""
    if not report.is_file():
        return None
    found = json.loads(report.read_text(encoding="utf-8"))
    latency, rate = found["latency_ms"]["end_to_end"], found["images_per_s"]["end_to_end"]
    return Figures(
        images_per_second=rate,
        p50_ms=latency["p50"],
        p95_ms=latency["p95"],
        input_share=None,
        dropped_steps=dropped,
        timed_steps=found["runs"],
        **_machine_figures(found, rate),
    )


def _machine_figures(machine: Mapping[str, Any], images_per_second: float) -> dict[str, Any]:
    work = machine["multiply_adds_per_image"]
    return {
        "memory_bytes": machine["peak_device_memory_bytes"] or machine["peak_host_memory_bytes"],
        "multiply_adds_per_image": work,
        "arithmetic_share": images_per_second * work / machine["machine_multiply_adds_per_second"],
        "device": machine["device"],
        "load_average": machine["load_average"],
    }
