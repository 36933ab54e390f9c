"""Compare our exported detector with that of another project in the same runtime.

`python benchmarks/exported_inference.py --runtime=onnxruntime|openvino [--model=efficientdet-d0] [--peer=effdet.onnx]`.

Measures inference at 512 pixels with batch 1 and random weights, from a uint8 image to detections. The peer is an ONNX
file for a float image: effdet's network from `benchmarks/peers/peer_effdet.py --onnx=effdet.onnx`, or torchvision's
detector from `benchmarks/peers/peer_torchvision.py retinanet_resnet50_fpn --onnx=retinanet.onnx`. The three take turns
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
from efficientdet.inference.checkpoint_model import load_model
from efficientdet.inference.predict import exported_network
from efficientdet.inference.predictor import host_predictor
from program_support.processor import available_cores

SIZE, TURN, PAUSE = 512, 5, 0.05
CLASSES = {"efficientdet-d0": 90, "retinanet-resnet50": 91, "mask-rcnn-resnet50": 90}  # as in the peers


def peer_in_onnxruntime(path: str) -> Callable:
    """Return a function that runs the network once, with the fastest options of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    [entry] = session.get_inputs()
    pixels = _drawn_pixels(entry.shape)
    if any(isinstance(side, str) for output in session.get_outputs() for side in output.shape):
        return lambda: session.run(None, {entry.name: pixels})
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
    request, pixels = compiled.create_infer_request(), _drawn_pixels(tuple(compiled.inputs[0].shape))
    return lambda: request.infer([pixels], share_inputs=True, share_outputs=True)


def _drawn_pixels(shape) -> np.ndarray:
    """Return our first image in the format that most peers expect."""
    height, width = shape[-2:]
    return np.moveaxis(_images(height, width, 1)[0], -1, 1).reshape(shape) / np.float32(255)


def _images(height: int, width: int, count: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (1, height, width, 3), np.uint8) for _ in range(count)]


def main() -> None:
    """Print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtime", choices=["onnxruntime", "openvino"], default="onnxruntime")
    parser.add_argument("--model", choices=CLASSES, default="efficientdet-d0")
    parser.add_argument("--peer", help="ONNX file of the peer.")
    parser.add_argument(
        "--weights", help="Weights of the peer (.pth) for our detector; a second stage depends on them."
    )
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--turns", type=int, default=10)
    arguments = parser.parse_args()
    # torchvision's weights select its resizing rule, whose canvas is larger
    overrides = {
        "image_size": arguments.size,
        **({"resize": "letterbox"} if arguments.weights else {"num_classes": CLASSES[arguments.model]}),
    }
    detector = load_model(
        ModelConfig(ckpt_path=arguments.weights, model_name=arguments.model, model_name_given=True, overrides=overrides)
    )[0].detector
    network = exported_network(detector, runtime=arguments.runtime)
    predict = host_predictor(detector, network)
    sizes, scales = np.full((1, 2), arguments.size, np.int32), np.ones((1, 2), np.float32)
    images = _images(arguments.size, arguments.size, TURN + 1)
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
        f"{arguments.model}, {device_name()}, {arguments.runtime}, batch 1 at {arguments.size} px, "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
    )


if __name__ == "__main__":
    main()
