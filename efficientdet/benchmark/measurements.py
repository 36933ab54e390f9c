"""How fast a detector is: preprocessing, network, post-processing, and uint8 images to detections end to end.

Every run gets newly drawn images, waits for the device, and is timed by itself; percentiles are percentiles. Network
and inference run under both backends and, under JAX, with TensorFlow absent.
"""

import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from efficientdet.benchmark.inspection import ModelConfig, open_model
from efficientdet.inference.image_files import read_image
from efficientdet.inference.predict import Network, Predict, build_predict, network_read_on_host, predict_on_host
from efficientdet.machine.device import (
    backend_name,
    compiled,
    device_name,
    peak_device_memory,
    peak_host_memory,
    processor_name,
    to_device,
    trace,
    versions,
    wait,
)
from efficientdet.machine.runtime import start_runtime
from model.dense_detector import DenseDetector
from object_detection.host_suppression import NetworkOutputs, detections_on_host, stacked
from object_detection.suppression import detections_from_outputs

WARM_UP_RUNS = 10
PHOTOGRAPH = (480, 640)  # height, width of what preprocessing gets: COCO's usual size
_RANDOM_INPUT = "random pixels, drawn anew for each run"
_LOG_UNITS = {"inference_fps": "images/s", "inference_latency_ms": "ms", "latency_avg": "s", "latency_90": "s",
              "latency_95": "s", "latency_99": "s"}


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig:
    """What is timed, and where the figures go."""

    batch_size: int = 1
    runs: int = 100
    warm_up_runs: int = WARM_UP_RUNS
    input_image: str | None = None  # None: random pixels
    saved_model_dir: str | None = None
    trace_folder: str | None = None
    log_file: str | None = None
    output_json: str | None = None


class Latency(NamedTuple):
    """Of one stage, over the runs, in seconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


class Run(NamedTuple):
    """One timed run."""

    seconds: dict[str, float]  # by stage
    detections: float  # an image, on average


Measure = Callable[[], Run]
Describe = Callable[[], dict[str, Any]]  # called after the runs


class Programs(NamedTuple):
    """A detector whole and in its two parts, each compiled."""

    predict: Predict  # images, sizes, scales -> Detections
    network: Callable  # images, sizes -> class logits, box deltas; normalisation included
    post_processing: Callable  # class logits, box deltas -> Detections


def latency_of(seconds: Sequence[float]) -> Latency:
    """Mean and true percentiles, linear between neighbouring samples (Hyndman and Fan's type 7), of at least one.

    The reference's "latency_90" is the mean of the fastest nine tenths, which lies below the mean of all.
    """
    samples = np.asarray(seconds, np.float64)
    return Latency(float(samples.mean()), *np.percentile(samples, (50, 90, 95, 99)).tolist())


def benchmark(model: ModelConfig, config: BenchmarkConfig) -> dict[str, Any]:
    """Measure, print a table, write what was asked for, and return the report."""
    measure, describe = (_saved_model_measure if config.saved_model_dir else _detector_measure)(model, config)
    first, runs = timed_runs(measure, warm_up_runs=config.warm_up_runs, runs=config.runs)
    if config.trace_folder:
        with trace(config.trace_folder):
            measure()
        print(f"wrote a trace of one run: {config.trace_folder}")
    report = {**_machine(), **describe(), **figures(first, runs, batch_size=config.batch_size)}
    print("\n".join(table(report)))
    write_report(report, config)
    return report


def timed_runs(measure: Measure, *, warm_up_runs: int, runs: int) -> tuple[Run, list[Run]]:
    """The very first run, which compiles, and those after the warm-up (in which the first is counted)."""
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
    """Latencies and rates by stage; compilation is what the first run took longer than the median."""
    latencies = {stage: latency_of([run.seconds[stage] for run in runs]) for stage in runs[0].seconds}
    return {
        "batch_size": batch_size,
        "runs": len(runs),
        "latency_ms": {stage: {name: 1000 * value for name, value in latency._asdict().items()}
                       for stage, latency in latencies.items()},
        "images_per_s": {stage: batch_size / latency.mean for stage, latency in latencies.items()},
        "compile_s": {stage: max(first.seconds[stage] - latency.p50, 0.0) for stage, latency in latencies.items()
                      if stage != "preprocessing"},
        "detections_per_image": float(np.mean([run.detections for run in runs])),
    }


def table(report: Mapping[str, Any]) -> list[str]:
    """The report as lines for a console."""
    lines = [f"{name:<22} {report[name]}" for name in
             ("model", "weights", "runtime", "device", "load_average", "precision", "batch_size", "runs", "input")]
    lines.append(f"{'image_size':<22} {report['image_size'][0]} x {report['image_size'][1]}")
    lines.append(f"{'versions':<22} {', '.join(f'{name} {version}' for name, version in report['versions'].items())}")
    if report.get("candidates_per_image") is not None:
        lines.append(f"{'candidates_per_image':<22} {report['candidates_per_image']} above score "
                     f"{report['score_threshold']}")
    lines.append(f"{'detections_per_image':<22} {report['detections_per_image']:.1f}")
    for place in ("host", "device"):
        peak = report[f"peak_{place}_memory_bytes"]
        lines.append(f"{f'peak {place} memory':<22} {'-' if peak is None else f'{peak / 2**20:.0f} MiB'}")
    heads = (*Latency._fields, "images/s", "compile s")
    lines += ["", f"{'ms a batch':<16}" + "".join(f"{head:>10}" for head in heads)]
    for stage, latency in report["latency_ms"].items():
        values = [*(latency[name] for name in Latency._fields), report["images_per_s"][stage]]
        values += [report["compile_s"][stage]] if stage in report["compile_s"] else []
        lines.append(f"{stage:<16}" + "".join(f"{value:>10.2f}" for value in values))
    return lines


def log_values(report: Mapping[str, Any]) -> dict[str, float]:
    """End to end under the reference's names; its latency_90 and so on are percentiles here."""
    latency = report["latency_ms"]["end_to_end"]
    return {
        "inference_fps": report["images_per_s"]["end_to_end"],
        "inference_latency_ms": latency["mean"],
        "latency_avg": latency["mean"] / 1000,
        **{f"latency_{percent}": latency[f"p{percent}"] / 1000 for percent in (90, 95, 99)},
    }


def write_report(report: Mapping[str, Any], config: BenchmarkConfig) -> None:
    """The log in dllogger's format, and the whole report as JSON, where they were asked for."""
    if config.log_file:
        from efficientdet.observing.journal import Journal

        path = Path(config.log_file)
        with Journal(path.parent, file_name=path.name, loggers=(), units=_LOG_UNITS) as journal:
            journal.log((), log_values(report))
    if config.output_json:
        Path(config.output_json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {config.output_json}")


def detector_programs(
    detector: DenseDetector, *, use_xla: bool, runtime: str = "keras", int8_images: Sequence[str] = ()
) -> Programs:
    """Compiled on first use. Clipping and scaling of 100 boxes are in `predict` alone."""
    network = network_read_on_host(detector, compiled=use_xla, runtime=runtime, int8_images=int8_images)
    if network is not None:
        return _programs_on_host(detector, network)
    anchors = detector.anchors

    def read(class_logits, box_deltas):
        return detections_from_outputs(class_logits, box_deltas, ops.convert_to_tensor(anchors),
                                       config=detector.config.suppression)

    return Programs(
        predict=build_predict(detector, compiled=use_xla),
        network=compiled(detector.outputs, detector.network, use_xla=use_xla),
        post_processing=compiled(read, detector.network, use_xla=use_xla))


def _programs_on_host(detector: DenseDetector, network: Network) -> Programs:
    return Programs(
        predict=predict_on_host(detector, network),
        # Outputs are copied, as the images of a batch share buffers: the whole takes less than its parts.
        network=lambda images, sizes: network(
            np.asarray(images), np.asarray(sizes), lambda outputs: NetworkOutputs(*map(np.copy, outputs))),
        post_processing=lambda *images: stacked([
            detections_on_host(outputs, detector.anchors, config=detector.config.suppression) for outputs in images]))


class Images:
    """Images for each run: random pixels drawn anew, or one photograph again and again."""

    def __init__(self, photograph: np.ndarray | None, *, size: tuple[int, int], batch_size: int):
        self._photograph, self._size, self._batch_size = photograph, size, batch_size
        self._random = np.random.default_rng(0)

    def photographs(self) -> list[np.ndarray]:
        """A batch of [h, w, 3] uint8 as a camera gives them."""
        if self._photograph is not None:
            return [self._photograph] * self._batch_size
        return list(self._noise(PHOTOGRAPH))

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as `Predict` wants them."""
        if self._photograph is not None:
            return preprocess(self.photographs(), self._size)
        return (self._noise(self._size), np.full((self._batch_size, 2), self._size, np.int32),
                np.ones((self._batch_size, 2), np.float32))

    def _noise(self, size: tuple[int, int]) -> np.ndarray:
        return self._random.integers(0, 256, (self._batch_size, *size, 3), np.uint8)


def preprocess(photographs: Iterable[np.ndarray], size: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Letterbox on the host, as infer.py does."""
    from dataset.input.resize import Letterbox

    boxed = [[np.asarray(part) for part in Letterbox(size)(image)] for image in photographs]
    return tuple(np.stack(parts) for parts in zip(*boxed, strict=True))


def measure_detector(programs: Programs, images: Images, *, preprocessing: Callable | None) -> Run:
    """One run of each stage, in turn, so that other load on the machine falls on all of them alike."""
    seconds = {}
    if preprocessing:
        photographs = images.photographs()
        seconds["preprocessing"], _ = _timed(lambda: preprocessing(photographs))
    batch = to_device(*images.batch())
    seconds |= _parts(programs, batch)
    seconds["end_to_end"], detections = _timed(lambda: _fetched(programs.predict(*batch)))
    return Run(seconds, float(detections[3].sum(axis=1).mean()))


def _parts(programs: Programs, batch: Sequence) -> dict[str, float]:
    """A function of its own, so that the outputs between the parts are freed before the whole is timed."""
    network, outputs = _timed(lambda: wait(programs.network(*batch[:2])))
    post_processing, _ = _timed(lambda: _fetched(programs.post_processing(*outputs)))
    return {"network": network, "post_processing": post_processing}


def candidates_above_threshold(detector: DenseDetector, class_logits: np.ndarray) -> int:
    """How many scores of one image, [A, K], enter suppression: with none, its cost would not be in the figures."""
    suppression = detector.config.suppression
    threshold = suppression.score_threshold
    if threshold >= 1:
        return 0
    above = class_logits > (math.log(threshold / (1 - threshold)) if threshold > 0 else -math.inf)
    return int(min(above.sum(), suppression.candidates))


def _detector_measure(model: ModelConfig, config: BenchmarkConfig) -> tuple[Measure, Describe]:
    restored, runtime = open_model(model)
    detector = restored.detector
    images = Images(read_image(config.input_image) if config.input_image else None, size=detector.config.image_size,
                    batch_size=config.batch_size)
    programs = detector_programs(detector, use_xla=runtime.use_xla, runtime=model.runtime,
                                 int8_images=model.int8_images)
    preprocessing = None
    if importlib.util.find_spec("tensorflow"):
        def preprocessing(photographs):
            return preprocess(photographs, detector.config.image_size)
    else:
        print("preprocessing is not timed: it needs TensorFlow, which is absent")

    def describe() -> dict[str, Any]:
        class_logits, _ = detector.outputs(*(tensor[:1] for tensor in to_device(*images.batch())[:2]))
        is_compiled = runtime.use_xla or backend_name() == "jax"
        return {
            "model": restored.hparams.name,
            "weights": model.ckpt_path or "random",
            "runtime": f"{backend_name()}{' with XLA' if is_compiled else ''}",
            "precision": runtime.precision,
            **(_exported_runtime(model) if model.runtime != "keras" else {}),
            "image_size": list(detector.config.image_size),
            "input": config.input_image or _RANDOM_INPUT,
            "score_threshold": detector.config.suppression.score_threshold,
            "candidates_per_image": candidates_above_threshold(detector, np.asarray(class_logits[0])),
        }

    return lambda: measure_detector(programs, images, preprocessing=preprocessing), describe


def _saved_model_measure(model: ModelConfig, config: BenchmarkConfig) -> tuple[Measure, Describe]:
    from efficientdet.export.saved_model import load_saved_model
    from efficientdet.families.registry import hyperparameters_of

    start_runtime(precision=model.precision, amp=model.amp, use_xla=model.use_xla)
    signature, description = load_saved_model(config.saved_model_dir)
    size = hyperparameters_of(description.model_name, description.hparams).input_size
    images = Images(read_image(config.input_image) if config.input_image else None, size=size,
                    batch_size=config.batch_size)

    def detect(batch) -> dict[str, np.ndarray]:
        return {name: np.asarray(tensor) for name, tensor in signature(batch).items()}

    def measure() -> Run:
        batch, = to_device(images.batch()[0])
        seconds, outputs = _timed(lambda: detect(batch))
        return Run({"end_to_end": seconds}, float(outputs["count"].mean()))

    return measure, lambda: {
        "model": description.model_name,
        "weights": config.saved_model_dir,
        "runtime": "SavedModel",
        "precision": "as exported",
        "image_size": list(size),
        "input": config.input_image or _RANDOM_INPUT,
    }


def _exported_runtime(model: ModelConfig) -> dict[str, Any]:
    """What another runtime computes on and in, whatever Keras would."""
    return {"runtime": model.runtime, "precision": "int8" if model.int8_images else "float32", "device": processor_name(),
            "peak_device_memory_bytes": None}


def _machine() -> dict[str, Any]:
    return {
        "backend": backend_name(),
        "device": device_name(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions(),
        "peak_host_memory_bytes": peak_host_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }


def _timed(call: Callable) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def _fetched(tensors) -> list[np.ndarray]:
    return [np.asarray(tensor) for tensor in tensors]
