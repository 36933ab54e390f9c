"""Latency of a detector: preprocessing, copy, network, post-processing, and end to end from images in host memory.

Every run gets new random images, waits for the device, and is timed separately. Network and inference run under both
backends and, under JAX, without TensorFlow.
"""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dataset.files.image_files import read_image
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import (
    backend_name,
    device_name,
    multiply_adds_per_second,
    peak_device_memory,
    peak_host_memory,
    to_device,
    trace,
    versions,
    wait,
)
from efficientdet.devices.runtime import start_runtime
from efficientdet.inference.checkpoint_model import build_predict, load_model
from efficientdet.inference.runtimes import Predictor, fetched
from efficientdet.options.export import InspectOptions
from model.multiply_adds import multiply_adds
from program_support.processor import processor_name

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule


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
            if stage not in ("preprocessing", "copy")
        },
        "detections_per_image": float(np.mean([run.detections for run in runs])),
    }


def timed(call: Callable) -> tuple[float, Any]:
    """Return the seconds of a call and its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


PHOTOGRAPH = (480, 640)  # height, width of the input of preprocessing: the usual size in COCO


class Images:
    """Images for each run: new random pixels, or the same photograph."""

    def __init__(
        self,
        photograph: np.ndarray | None,
        *,
        size: tuple[int, int],
        batch_size: int,
        resize: "ResizeRule | None" = None,
    ):
        """Prepare images; size: of the network's input; resize: the resize rule for a photograph."""
        self._photograph, self._size, self._batch_size, self._resize = photograph, size, batch_size, resize
        self._random = np.random.default_rng(0)

    def photographs(self) -> list[np.ndarray]:
        """Return a batch of images [h, w, 3] uint8 in camera size."""
        if self._photograph is not None:
            return [self._photograph] * self._batch_size
        return list(self._noise(PHOTOGRAPH))

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return images [B, H, W, 3] uint8, sizes [B, 2] and scales [B, 2] as in a `Batch`."""
        if self._photograph is not None:
            assert self._resize is not None
            return preprocess(self.photographs(), self._resize)
        return (
            self._noise(self._size),
            np.full((self._batch_size, 2), self._size, np.int32),
            np.ones((self._batch_size, 2), np.float32),
        )

    def _noise(self, size: tuple[int, int]) -> np.ndarray:
        return self._random.integers(0, 256, (self._batch_size, *size, 3), np.uint8)


def preprocess(photographs: Iterable[np.ndarray], resize: "ResizeRule") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Resize images [h, w, 3] uint8 on the host as infer.py does; return a batch as `Images.batch` does."""
    boxed = [[np.asarray(part) for part in resize(image)] for image in photographs]
    images, sizes, scales = (np.stack(parts) for parts in zip(*boxed, strict=True))
    return images, sizes, scales


def measure_detector(predict: Predictor, images: Images, *, preprocessing: Callable | None) -> Run:
    """Time one run of each stage in turn, so that other load on the machine affects all of them equally.

    End to end, from images in host memory, includes the copy of the batch to the device, clipping and scaling of the
    boxes. If the network runs separately, its outputs are copied for the stages, because the images of a batch share
    memory: end to end takes less than the sum of the stages.
    """
    seconds = {}
    if preprocessing:
        photographs = images.photographs()
        seconds["preprocessing"], _ = timed(lambda: preprocessing(photographs))
    batch = images.batch()
    seconds["copy"], on_device = timed(lambda: to_device(*batch))
    seconds |= _parts(predict, on_device)
    seconds["end_to_end"], detections = timed(lambda: predict(*batch))
    return Run(seconds, float(detections.valid.sum(axis=1).mean()))


def _parts(predict: Predictor, batch: Sequence) -> dict[str, float]:
    """Time the stages; a separate function, so that their outputs are freed before the end-to-end run."""
    network, outputs = timed(lambda: wait(predict.outputs(*batch[:2])))
    post_processing, _ = timed(lambda: fetched(predict.postprocess(outputs, batch[1])))
    return {"network": network, "post_processing": post_processing}


_LOG_UNITS = {
    "inference_fps": "images/s",
    "inference_latency_ms": "ms",
    "latency_avg": "s",
    "latency_90": "s",
    "latency_95": "s",
    "latency_99": "s",
}


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a console."""
    lines = [
        f"{name:<22} {report[name]}"
        for name in (
            "model",
            "weights",
            "runtime",
            "device",
            "load_average",
            "precision",
            "batch_size",
            "runs",
            "input",
        )
    ]
    lines.append(f"{'image_size':<22} {report['image_size'][0]} x {report['image_size'][1]}")
    lines.append(f"{'versions':<22} {', '.join(f'{name} {version}' for name, version in report['versions'].items())}")
    lines.append(f"{'detections_per_image':<22} {report['detections_per_image']:.1f}")
    for place in ("host", "device"):
        peak = report[f"peak_{place}_memory_bytes"]
        lines.append(f"{f'peak {place} memory':<22} {'-' if peak is None else f'{peak / 2**20:.0f} MiB'}")
    heads = (*Latency._fields, "images/s", "compile s")
    lines += ["", f"{'ms per batch':<16}" + "".join(f"{head:>10}" for head in heads)]
    for stage, latency in report["latency_ms"].items():
        values = [*(latency[name] for name in Latency._fields), report["images_per_s"][stage]]
        values += [report["compile_s"][stage]] if stage in report["compile_s"] else []
        lines.append(f"{stage:<16}" + "".join(f"{value:>10.2f}" for value in values))
    return lines


def log_values(report: Mapping[str, Any]) -> dict[str, float]:
    """Return end-to-end values under the reference's names; latency_90 etc. are percentiles here."""
    latency = report["latency_ms"]["end_to_end"]
    return {
        "inference_fps": report["images_per_s"]["end_to_end"],
        "inference_latency_ms": latency["mean"],
        "latency_avg": latency["mean"] / 1000,
        **{f"latency_{percent}": latency[f"p{percent}"] / 1000 for percent in (90, 95, 99)},
    }


def write_report(report: Mapping[str, Any], *, log_file: str | None, output_json: str | None) -> None:
    """Write, if requested, the log in dllogger's format and the complete report as JSON."""
    if log_file:
        from efficientdet.run_log.journal import Journal

        path = Path(log_file)
        with Journal(path.parent, file_name=path.name, units=_LOG_UNITS) as journal:
            journal.log((), log_values(report))
    if output_json:
        Path(output_json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {output_json}")


_RANDOM_INPUT = "random pixels, new for each run"


Describe = Callable[[], dict[str, Any]]  # called after the runs


def benchmark(model: ModelConfig, options: InspectOptions) -> dict[str, Any]:
    """Measure, print a table, write the requested files, and return the report."""
    measure, describe = (_saved_model_measure if options.saved_model_dir else _detector_measure)(model, options)
    first, runs = timed_runs(measure, warm_up_runs=options.bm_warm_up_runs, runs=options.bm_runs)
    if options.trace_filename:
        with trace(options.trace_filename):
            measure()
        print(f"wrote a trace of one run: {options.trace_filename}")
    report = {
        "backend": backend_name(),
        "device": device_name(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions(),
        "peak_host_memory_bytes": peak_host_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
        **describe(),
        **figures(first, runs, batch_size=options.batch_size),
    }
    print("\n".join(table(report)))
    write_report(report, log_file=options.dllogger_path, output_json=options.output_json)
    return report


def _detector_measure(model: ModelConfig, options: InspectOptions) -> tuple[Measure, Describe]:
    """Return a function that times each stage of a checkpoint's or random detector, and one that describes it."""
    restored, runtime = load_model(model)
    detector = restored.detector
    size = detector.image_size
    images = _images(options, size, lambda: restored.resize)
    predict = build_predict(
        detector,
        compiled=runtime.use_xla,
        runtime=model.runtime,
        int8_images=model.int8_images,
        resize=restored.resize if model.int8_images else None,
    )
    preprocessing = None
    if importlib.util.find_spec("tensorflow"):

        def preprocessing(photographs):
            return preprocess(photographs, restored.resize)
    else:
        print("preprocessing is not timed: TensorFlow is not installed")

    def describe() -> dict[str, Any]:
        is_compiled = runtime.use_xla or backend_name() == "jax"
        return {
            "model": restored.hparams.name,
            "weights": model.ckpt_path or "random",
            "runtime": f"{backend_name()}{' with XLA' if is_compiled else ''}",
            "precision": runtime.precision,
            **(_exported_runtime(model) if model.runtime != "keras" else {}),
            "image_size": list(size),
            "input": options.input_image or _RANDOM_INPUT,
            "multiply_adds_per_image": multiply_adds(detector.network),
            "machine_multiply_adds_per_second": multiply_adds_per_second(runtime.precision),
        }

    return lambda: measure_detector(predict, images, preprocessing=preprocessing), describe


def _images(options: InspectOptions, size: tuple[int, int], resize: Callable[[], "ResizeRule"]) -> Images:
    """Return the images; `resize` is called only for a photograph, because it needs TensorFlow."""
    if not options.input_image:
        return Images(None, size=size, batch_size=options.batch_size)
    return Images(read_image(options.input_image), size=size, batch_size=options.batch_size, resize=resize())


def _saved_model_measure(model: ModelConfig, options: InspectOptions) -> tuple[Measure, Describe]:
    """Return a function that times a SavedModel on images of its input size, and one that describes it."""
    from efficientdet.exports.saved_model import load_saved_model
    from efficientdet.families.registry import hyperparameters_of

    assert options.saved_model_dir is not None
    start_runtime(precision=model.precision, amp=model.amp, use_xla=model.use_xla)
    signature, description = load_saved_model(options.saved_model_dir)
    hparams = hyperparameters_of(description.model_name, description.hparams)
    rule = hparams.family.resize_rule(hparams)
    images = _images(options, rule.size, lambda: rule)

    def detect(batch) -> dict[str, np.ndarray]:
        return {name: np.asarray(tensor) for name, tensor in signature(batch).items()}

    def measure() -> Run:
        (batch,) = to_device(images.batch()[0])
        seconds, outputs = timed(lambda: detect(batch))
        return Run({"end_to_end": seconds}, float(outputs["count"].mean()))

    return measure, lambda: {
        "model": description.model_name,
        "weights": options.saved_model_dir,
        "runtime": "SavedModel",
        "precision": "as exported",
        "image_size": list(rule.size),
        "input": options.input_image or _RANDOM_INPUT,
    }


def _exported_runtime(model: ModelConfig) -> dict[str, Any]:
    """Return device and precision of a runtime other than Keras."""
    return {
        "runtime": model.runtime,
        "precision": "int8" if model.int8_images else "float32",
        "device": processor_name(),
        "peak_device_memory_bytes": None,
    }
