"""Times of a benchmark's runs, and their means, percentiles and rates."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Latency(NamedTuple):
    """Latency of one stage over the runs, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Run(NamedTuple):
    """Seconds and detections of one run of a benchmark."""

    seconds: dict[str, float]  # key: stage
    detections: float  # mean per image


Measure = Callable[[], Run]


def latency_of(seconds: Sequence[float]) -> Latency:
    """Return mean and percentiles of at least one sample, linearly interpolated (Hyndman and Fan's type 7).

    The reference's "latency_90" is the mean of the fastest nine tenths, which is below the mean of all.
    """
    samples = np.asarray(seconds, np.float64)
    return Latency(float(samples.mean()), *np.percentile(samples, (50, 90, 95, 99)).tolist())


def timed_runs(measure: Measure, *, warm_up_runs: int, runs: int) -> tuple[Run, list[Run]]:
    """Return the first run, which compiles, and the runs after the warm-up, which includes the first."""
    started = time.perf_counter()
    first = measure()
    print(f"first run, with compilation: {time.perf_counter() - started:.1f} s", flush=True)
    started = time.perf_counter()
    for _ in range(warm_up_runs - 1):
        measure()
    if warm_up_runs > 1:
        each = (time.perf_counter() - started) / (warm_up_runs - 1)
        print(f"{runs} runs follow, about {each * runs:.0f} s", flush=True)
    return first, [measure() for _ in range(runs)]


def figures(first: Run, runs: Sequence[Run], *, batch_size: int) -> dict[str, Any]:
    """Return latencies and rates by stage; the compilation time is the first run minus the median."""
    latencies = {stage: latency_of([run.seconds[stage] for run in runs]) for stage in runs[0].seconds}
    return {
        "batch_size": batch_size,
        "runs": len(runs),
        "latency_ms": {
            stage: {name: 1000 * value for name, value in latency._asdict().items()}
            for stage, latency in latencies.items()
        },
        "images_per_s": {stage: batch_size / latency.mean for stage, latency in latencies.items()},
        "compile_s": {
            stage: max(first.seconds[stage] - latency.p50, 0.0)
            for stage, latency in latencies.items()
            if stage != "preprocessing"
        },
        "detections_per_image": float(np.mean([run.detections for run in runs])),
    }


def timed(call: Callable) -> tuple[float, Any]:
    """Return the seconds of a call and its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result
