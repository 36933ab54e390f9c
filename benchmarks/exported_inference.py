"""Compare our exported detector with that of another project in the same runtime.

`python benchmarks/exported_inference.py --runtime=onnxruntime|openvino [--model=efficientdet-d0] [--peer=effdet.onnx]`.

Measures inference at 512 pixels with batch 1 and random weights, from a uint8 image to detections. The peer is an ONNX
file for a float image: effdet's network from `benchmarks/peers/peer_effdet.py --onnx=effdet.onnx`. The three take turns
of five runs, so that other load on the machine affects all of them. A pause before each turn lets the threads of the
others stop.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from efficientdet.configuration.model_config import ModelConfig
from efficientdet.devices.device import device_name, versions
from efficientdet.inference.checkpoint_model import exported_network, load_model
from efficientdet.inference.predictor import host_predictor
from program_support.processor import available_cores

TURN, PAUSE = 5, 0.05


def peer_in_onnxruntime(path: str) -> Callable:
    """Return a function that runs the network once, with the fastest options of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [entry] = session.get_inputs()
    pixels = np.random.default_rng(0).uniform(size=entry.shape).astype(np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input(entry.name, pixels)
    buffers = {output.name: np.empty(output.shape, np.float32) for output in session.get_outputs()}
    for name, buffer in buffers.items():
        binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)

    def run():
        session.run_with_iobinding(binding)
        return pixels, buffers  # kept alive by the function

    return run


def peer_in_openvino(path: str) -> Callable:
    """Return a function that runs the network once in OpenVINO."""
    import openvino

    compiled = openvino.Core().compile_model(
        path,
        "CPU",
        {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": available_cores()},
    )
    request = compiled.create_infer_request()
    pixels = np.random.default_rng(0).uniform(size=tuple(compiled.inputs[0].shape)).astype(np.float32)
    return lambda: request.infer([pixels], share_inputs=True, share_outputs=True)


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", choices=["onnxruntime", "openvino"], default="onnxruntime")
    parser.add_argument("--model", default="efficientdet-d0")
    parser.add_argument("--peer", help="ONNX file of the peer.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--turns", type=int, default=10)
    arguments = parser.parse_args()
    size = arguments.size
    overrides = {"image_size": size, "num_classes": 90}
    detector = load_model(ModelConfig(model_name=arguments.model, model_name_given=True, overrides=overrides))[
        0
    ].detector
    network = exported_network(detector, runtime=arguments.runtime)
    predict = host_predictor(detector, network)
    sizes, scales = np.full((1, 2), size, np.int32), np.ones((1, 2), np.float32)
    images = np.random.default_rng(0).integers(0, 256, (TURN + 1, 1, size, size, 3), np.uint8)
    calls: dict[str, Callable] = {
        "ours, end to end": lambda image: predict(image, sizes, scales),
        "ours, network alone": lambda image: network(image, sizes, lambda outputs, size: None),
    }
    if arguments.peer:
        peer = {"onnxruntime": peer_in_onnxruntime, "openvino": peer_in_openvino}[arguments.runtime](arguments.peer)
        calls[Path(arguments.peer).name] = lambda image: peer()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(arguments.turns + 1):
        for name, call in calls.items():
            time.sleep(PAUSE)
            call(images[-1])
            for image in images[:TURN]:
                start = time.perf_counter()
                call(image)
                if turn:  # the first warms up
                    seconds[name].append(time.perf_counter() - start)
    for name, values in seconds.items():
        shown = [1e3 * value for value in (statistics.median(values), min(values), max(values))]
        print("{:<22} median {:6.1f} ms, {:.1f} to {:.1f}".format(name, *shown))
    print(
        f"{arguments.model}, {device_name()}, {arguments.runtime}, batch 1 at {size} px, "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
    )


if __name__ == "__main__":
    main()
