"""Latency of a detector: preprocessing, network, post-processing, and end to end from uint8 images to detections.

Every run gets new random images, waits for the device, and is timed separately. Network and inference run under both
backends and, under JAX, without TensorFlow.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.files.image_files import read_image
from efficientdet.benchmark.latency import Run, figures, timed, timed_runs
from efficientdet.benchmark.latency_report import table, write_report
from efficientdet.benchmark.stages import Images, measure_detector, preprocess
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import (
    backend_name,
    device_name,
    peak_device_memory,
    peak_host_memory,
    to_device,
    trace,
    versions,
)
from efficientdet.devices.matrix_product import multiply_adds_per_second
from efficientdet.devices.runtime import start_runtime
from efficientdet.inference.checkpoint_model import load_model
from efficientdet.inference.predict import build_predict
from efficientdet.inference.runtimes import Predictor
from efficientdet.options.export import InspectOptions
from model.detection_model import DetectionModel
from model.multiply_adds import multiply_adds
from program_support.processor import processor_name

if TYPE_CHECKING:
    from dataset.input.resize import ResizeRule

_RANDOM_INPUT = "random pixels, new for each run"


Measure = Callable[[], Run]
Describe = Callable[[], dict[str, Any]]  # called after the runs


def benchmark(model: ModelConfig, options: InspectOptions) -> dict[str, Any]:
    """Measure, print a table, write the requested files, and return the report."""
    measure, describe = (_saved_model_measure if options.saved_model_dir else _detector_measure)(model, options)
    first, runs = timed_runs(measure, warm_up_runs=options.bm_warm_up_runs, runs=options.bm_runs)
    if options.trace_filename:
        with trace(options.trace_filename):
            measure()
        print(f"wrote a trace of one run: {options.trace_filename}")
    report = {**_machine(), **describe(), **figures(first, runs, batch_size=options.batch_size)}
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
            **_suppression_work(detector, predict, images),
        }

    return lambda: measure_detector(predict, images, preprocessing=preprocessing), describe


def _images(options: InspectOptions, size: tuple[int, int], resize: Callable[[], "ResizeRule"]) -> Images:
    """Return the images; `resize` is called only for a photograph, because it needs TensorFlow."""
    if not options.input_image:
        return Images(None, size=size, batch_size=options.batch_size)
    return Images(read_image(options.input_image), size=size, batch_size=options.batch_size, resize=resize())


def _suppression_work(detector: DetectionModel, predict: Predictor, images: Images) -> dict[str, Any]:
    """Return the number of candidates per image of a dense detector with NMS; nothing for others."""
    if not detector.postprocessing.detects_on_host:
        return {}
    # The network is compiled already: operation by operation, an accelerator would compile each of them
    outputs = predict.outputs(*to_device(*images.batch())[:2])
    if isinstance(outputs, list):  # by image, on the host
        return detector.postprocessing.suppression_work(outputs[0])
    first = [np.asarray(tensor[0]) for tensor in detector.postprocessing.host_outputs([each[:1] for each in outputs])]
    return detector.postprocessing.suppression_work(first)


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


def _machine() -> dict[str, Any]:
    """Return facts about the machine: backend, device, load, versions, and peak memory."""
    return {
        "backend": backend_name(),
        "device": device_name(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": versions(),
        "peak_host_memory_bytes": peak_host_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }
