"""Latency of exported files: of detection in an image, and of network and post-processing apart."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import tensorflow as tf

from efficientdet.artifacts.artifact_files import read_artifact
from efficientdet.artifacts.onnx_file import onnx_model, without_postprocessing
from efficientdet.checkpoints.restore import Restored
from efficientdet.configuration.artifact_formats import RUNTIMES_OF
from efficientdet.inference.exported_network import ExportedNetwork, copied
from model.detector import Detector
from program_support.processor import available_cores
from program_support.stderr_capture import captured_stderr

_WARM_UP_RUNS = 3
_Inputs = tuple[np.ndarray, np.ndarray]  # images [1, H, W, 3] uint8 and sizes [1, 2] int32
_Runs = dict[str, Callable[[], object]]  # "complete", "network" or "postprocessing" -> a run of this part


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
    restored: Restored, name: str, path: Path, image: np.ndarray, *, runs: int
) -> tuple[float | None, float | None]:
    """Return milliseconds of network and post-processing of an image, without resizing it.

    Both are None if the file cannot be divided. name: the format of the file. A part that does not run alone is the
    difference to the complete file.
    """
    images, sizes, _ = (np.asarray(part)[None] for part in restored.resize(image))
    parts = _DIVIDED[name](restored.detector, name, path, (images, sizes)) if name in _DIVIDED else {}
    if not parts:
        return None, None
    took = {part: times(run, runs=runs)[0] for part, run in parts.items()}
    if "complete" in took:
        rest = round(max(took["complete"] - took.get("network", 0.0) - took.get("postprocessing", 0.0), 0.0), 2)
        took = {"network": rest, "postprocessing": rest, **took}
    return took["network"], took["postprocessing"]


def _onnx_runs(detector: Detector, name: str, path: Path, inputs: _Inputs) -> _Runs:
    model = onnx_model(detector, detects=True) if name == "openvino" else onnx.load(path)
    network = without_postprocessing(model)
    if network is None:
        return {}
    runtime = RUNTIMES_OF.get(name, "onnxruntime")
    return {
        part: partial(ExportedNetwork(one.SerializeToString(), runtime=runtime), *inputs, copied)
        for part, one in (("network", network), ("complete", model))
    }


def _litert_runs(detector: Detector, name: str, path: Path, inputs: _Inputs) -> _Runs:
    """Run int8's second file, which is float32, as the post-processing of both formats."""
    from ai_edge_litert.interpreter import Interpreter

    from efficientdet.artifacts.litert_file import litert_postprocessing, network_output_names

    content, _ = read_artifact(path)
    second = content[1] if isinstance(content, tuple) else litert_postprocessing(detector)
    interpreter = Interpreter(model_content=second, num_threads=available_cores())
    with captured_stderr():  # LiteRT prints its delegate there
        interpreter.allocate_tensors()
    outputs = dict(zip(network_output_names(detector), map(np.asarray, detector.outputs(*inputs)), strict=True))
    return {
        "complete": partial(ExportedNetwork(content, runtime="litert"), *inputs, copied),
        "postprocessing": partial(interpreter.get_signature_runner(), **outputs, sizes=inputs[1]),
    }


def _saved_model_runs(detector: Detector, name: str, path: Path, inputs: _Inputs) -> _Runs:
    """Run the functions that the signature of the file calls after it has resized the images."""
    if not detector.detects_on_host:
        return {}
    images, sizes = map(tf.constant, inputs)
    network, postprocess = (
        tf.function(function, autograph=False) for function in (detector.outputs, detector.detections)
    )
    return {
        "network": partial(network, images, sizes),
        "postprocessing": partial(postprocess, network(images, sizes), sizes),
    }


_DIVIDED = {
    "onnx": _onnx_runs,
    "onnx-int8": _onnx_runs,
    "openvino": _onnx_runs,
    "litert": _litert_runs,
    "litert-int8": _litert_runs,
    "savedmodel": _saved_model_runs,
}
