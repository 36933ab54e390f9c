"""Latency of a detector: preprocessing, copy, network, post-processing, and end to end from images in host memory.

Every run gets new random images, waits for the device, and is timed separately. Network and inference run under both
backends and, under JAX, without TensorFlow.
"""

import importlib.util
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


PHOTOGRAPH = (480, 640)  # height, width of the input of preprocessing: the usual size in COCO
_PERCENTILES = (50, 90, 95, 99)
Inputs = tuple[
    np.ndarray, np.ndarray, np.ndarray
]  # images [B, H, W, 3] uint8, sizes and scales [B, 2], as in a `Batch`


class Run(NamedTuple):
    """Seconds and detections of one run of a benchmark."""

    seconds: dict[str, float]  # key: stage
    detections: float  # mean per image


Measure = Callable[[], Run]
Describe = Callable[[], dict[str, Any]]  # called after the runs


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles of at least one sample, linearly interpolated (Hyndman and Fan's type 7), in ms.

    The reference's "latency_90" is the mean of the fastest nine tenths, which is below the mean of all.
    """
    samples = 1000 * np.asarray(seconds, np.float64)
    percentiles = np.percentile(samples, _PERCENTILES).tolist()
    return {"mean": float(samples.mean())} | {
        f"p{n}": value for n, value in zip(_PERCENTILES, percentiles, strict=True)
    }


def timed_runs(measure: Measure, *, warm_up_runs: int, runs: int) -> tuple[Run, list[Run]]:
    """Return the first run, which compiles, and the runs after the warm-up, which includes the first."""
    seconds, first = timed(measure)
    print(f"first run, with compilation: {seconds:.1f} s", flush=True)
    seconds, _ = timed(lambda: [measure() for _ in range(warm_up_runs - 1)])
    if warm_up_runs > 1:
        print(f"{runs} runs follow, about {seconds / (warm_up_runs - 1) * runs:.0f} s", flush=True)
    return first, [measure() for _ in range(runs)]


def figures(first: Run, runs: Sequence[Run], *, batch_size: int) -> dict[str, Any]:
    """Return latencies and rates by stage; the compilation time is the first run minus the median."""
    latencies = {stage: latency_ms([run.seconds[stage] for run in runs]) for stage in runs[0].seconds}
    return {
        "batch_size": batch_size,
        "runs": len(runs),
        "latency_ms": latencies,
        "images_per_s": {stage: 1000 * batch_size / latency["mean"] for stage, latency in latencies.items()},
        "compile_s": {
            stage: max(first.seconds[stage] - latency["p50"] / 1000, 0.0)
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


def random_images(size: tuple[int, int], count: int) -> Iterator[np.ndarray]:
    """Yield new random images [count, *size, 3] uint8 without end."""
    random = np.random.default_rng(0)
    while True:
        yield random.integers(0, 256, (count, *size, 3), np.uint8)


def random_inputs(size: tuple[int, int], count: int) -> Iterator[Inputs]:
    """Yield inputs of a network without padding, of new random pixels."""
    sizes, scales = np.full((count, 2), size, np.int32), np.ones((count, 2), np.float32)
    return ((images, sizes, scales) for images in random_images(size, count))


def preprocess(photographs: Iterable[np.ndarray], resize: "ResizeRule") -> Inputs:
    """Resize images [h, w, 3] uint8 on the host as infer.py does."""
    boxed = [[np.asarray(part) for part in resize(image)] for image in photographs]
    images, sizes, scales = (np.stack(parts) for parts in zip(*boxed, strict=True))
    return images, sizes, scales


def measure_detector(
    predict: Predictor, inputs: Iterator[Inputs], *, preprocessing: Callable[[], Any] | None = None
) -> Run:
    """Time one run of each stage in turn, so that other load on the machine affects all of them equally.

    End to end, from images in host memory, includes the copy of the batch to the device, clipping and scaling of the
    boxes. If the network runs separately, its outputs are copied for the stages, because the images of a batch share
    memory: end to end takes less than the sum of the stages.
    """
    seconds, batch = {}, next(inputs)
    if preprocessing:
        seconds["preprocessing"], _ = timed(preprocessing)
    seconds["copy"], on_device = timed(lambda: to_device(*batch))
    seconds |= _parts(predict, on_device)
    seconds["end_to_end"], detections = timed(lambda: predict(*batch))
    return Run(seconds, float(detections.valid.sum(axis=1).mean()))


def _parts(predict: Predictor, batch: Sequence) -> dict[str, float]:
    """Time the stages; a separate function, so that their outputs are freed before the end-to-end run."""
    network, outputs = timed(lambda: wait(predict.outputs(*batch[:2])))
    post_processing, _ = timed(lambda: fetched(predict.postprocess(outputs, batch[1])))
    return {"network": network, "post_processing": post_processing}


def table(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines for a console."""
    by_stage = ("latency_ms", "images_per_s", "compile_s")
    latencies, rates, compilation = (report[name] for name in by_stage)
    lines = [f"{name:<33} {value}" for name, value in report.items() if name not in by_stage]
    columns = (*next(iter(latencies.values())), "images/s", "compile s")
    lines += ["", f"{'ms per batch':<16}" + "".join(f"{column:>10}" for column in columns)]
    for stage, latency in latencies.items():
        values = [*latency.values(), rates[stage], *([compilation[stage]] if stage in compilation else [])]
        lines.append(f"{stage:<16}" + "".join(f"{value:>10.2f}" for value in values))
    return lines


def log_values(report: Mapping[str, Any]) -> dict[str, float]:
    """Return end-to-end values under the reference's names; latency_90 etc. are percentiles here."""
    latency = report["latency_ms"]["end_to_end"]
    return {
        "inference_fps": report["images_per_s"]["end_to_end"],
        "inference_latency_ms": latency["mean"],
        "latency_avg": latency["mean"] / 1000,
        **{f"latency_{percent}": latency[f"p{percent}"] / 1000 for percent in _PERCENTILES[1:]},
    }


def write_report(report: Mapping[str, Any], *, log_file: str | None, output_json: str | None) -> None:
    """Write, if requested, the log in dllogger's format and the complete report as JSON."""
    if log_file:
        from efficientdet.run_log.journal import Journal

        path, values = Path(log_file), log_values(report)
        units = dict.fromkeys(values, "s") | {"inference_fps": "images/s", "inference_latency_ms": "ms"}
        with Journal(path.parent, file_name=path.name, units=units) as journal:
            journal.log((), values)
    if output_json:
        Path(output_json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {output_json}")


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
        "input": options.input_image or "random pixels, new for each run",
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
    predict = build_predict(
        detector,
        compiled=runtime.use_xla,
        runtime=model.runtime,
        int8_images=model.int8_images,
        resize=restored.resize if model.int8_images else None,
    )
    inputs, photographs = _inputs(options, detector.image_size, lambda: restored.resize)
    preprocessing = None
    if importlib.util.find_spec("tensorflow"):

        def preprocessing() -> Inputs:
            return preprocess(next(photographs), restored.resize)
    else:
        print("preprocessing is not timed: TensorFlow is not installed")

    def describe() -> dict[str, Any]:
        is_compiled = runtime.use_xla or backend_name() == "jax"
        facts = {
            "model": restored.hparams.name,
            "weights": model.ckpt_path or "random",
            "runtime": f"{backend_name()}{' with XLA' if is_compiled else ''}",
            "precision": runtime.precision,
            "image_size": list(detector.image_size),
            "multiply_adds_per_image": multiply_adds(detector.network),
            "machine_multiply_adds_per_second": multiply_adds_per_second(runtime.precision),
        }
        return facts | (_exported_runtime(model) if model.runtime != "keras" else {})

    return lambda: measure_detector(predict, inputs, preprocessing=preprocessing), describe


def _inputs(
    options: InspectOptions, size: tuple[int, int], resize: Callable[[], "ResizeRule"]
) -> tuple[Iterator[Inputs], Iterator[Iterable[np.ndarray]]]:
    """Return the inputs of the network, and images in camera size: random ones, or the photograph that is given.

    `resize` is called only for a photograph, because it needs TensorFlow.
    """
    count = options.batch_size
    if not options.input_image:
        return random_inputs(size, count), random_images(PHOTOGRAPH, count)
    photographs = [read_image(options.input_image)] * count
    return itertools.repeat(preprocess(photographs, resize())), itertools.repeat(photographs)


def _saved_model_measure(model: ModelConfig, options: InspectOptions) -> tuple[Measure, Describe]:
    """Return a function that times a SavedModel on images of its input size, and one that describes it."""
    from efficientdet.exports.saved_model import load_saved_model
    from efficientdet.families.registry import hyperparameters_of

    assert options.saved_model_dir is not None
    start_runtime(precision=model.precision, amp=model.amp, use_xla=model.use_xla)
    signature, description = load_saved_model(options.saved_model_dir)
    hparams = hyperparameters_of(description.model_name, description.hparams)
    rule = hparams.family.resize_rule(hparams)
    inputs, _ = _inputs(options, rule.size, lambda: rule)

    def measure() -> Run:
        (batch,) = to_device(next(inputs)[0])
        seconds, outputs = timed(lambda: {name: np.asarray(tensor) for name, tensor in signature(batch).items()})
        return Run({"end_to_end": seconds}, float(outputs["count"].mean()))

    return measure, lambda: {
        "model": description.model_name,
        "weights": options.saved_model_dir,
        "runtime": "SavedModel",
        "precision": "as exported",
        "image_size": list(rule.size),
    }


def _exported_runtime(model: ModelConfig) -> dict[str, Any]:
    """Return device and precision of a runtime other than Keras."""
    return {
        "runtime": model.runtime,
        "precision": "int8" if model.int8_images else "float32",
        "device": processor_name(),
        "peak_device_memory_bytes": None,
    }
