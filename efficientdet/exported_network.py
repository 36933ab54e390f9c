"""A detector's network run by ONNX Runtime or OpenVINO, in place of Keras."""

from collections.abc import Callable, Iterator

import numpy as np

from object_detection.host_suppression import NetworkOutputs

Network = Callable[[np.ndarray, np.ndarray], Iterator[NetworkOutputs]]
_OUTPUTS = NetworkOutputs._fields


def exported_network(model: bytes, *, runtime: str, threads: int = 0) -> Network:
    """A function of `images` and `sizes`, see `onnx_model`, with the file's content as its weights; threads 0: all cores.

    The images of a batch go one after the other, each over all cores: its activations stay in the cache, which on a CPU
    is faster than a batch at once. What comes out of an image is overwritten by the next.
    """
    one = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](model, threads)
    return lambda images, sizes: (one(images[i : i + 1], sizes[i : i + 1]) for i in range(len(images)))


def _onnxruntime(model: bytes, threads: int) -> Callable:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    buffers = {output.name: np.empty((1, *output.shape[1:]), np.float32) for output in session.get_outputs()}
    for name, buffer in buffers.items():  # made once: new ones of this size cost a page fault for each 4 KB
        binding.bind_output(name, "cpu", 0, np.float32, buffer.shape, buffer.ctypes.data)

    def run(images, sizes) -> NetworkOutputs:
        binding.bind_cpu_input("images", np.ascontiguousarray(images))
        binding.bind_cpu_input("sizes", np.ascontiguousarray(sizes))
        session.run_with_iobinding(binding)
        return NetworkOutputs(*(buffers[name][0] for name in _OUTPUTS))

    return run


def _openvino(model: bytes, threads: int) -> Callable:
    import openvino

    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({port.any_name: [1, *(dimension.get_length() for dimension in list(port.partial_shape)[1:])]
                     for port in network.inputs})
    compiled = core.compile_model(network, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads})

    def run(images, sizes) -> NetworkOutputs:
        outputs = compiled({"images": images, "sizes": sizes})
        return NetworkOutputs(*(outputs[name][0] for name in _OUTPUTS))

    return run
