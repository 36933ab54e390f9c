"""A detector's network run by ONNX Runtime, OpenVINO or LiteRT instead of Keras."""

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from efficientdet.devices.runtime_environment import kept_signal_stack
from object_detection.structures import DETECTIONS, Detections, Tensor
from program_support.errors import InputError, printable, silenced_stderr
from program_support.processor import available_cores

_MAX_STREAMS = 8  # each has its own activations: about 200 MB for D0 at 512
_ANY_SIDE = 3  # of a dimension that varies, in a first call; also a number of channels
_DTYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}

# A file; or .xml and .bin of OpenVINO; or network and post-processing of LiteRT
ModelContent = bytes | tuple[bytes, bytes]
Outputs = tuple[np.ndarray, ...]  # outputs for one image in the order of the file, without the batch dimension
Inputs = Mapping[str, np.ndarray]  # by name: `images` [1, H, W, 3] and `sizes` [1, 2], or `image` [h, w, 3]
Run = Callable[[Inputs], Outputs]  # the next call may overwrite the outputs
Result = TypeVar("Result")
Postprocess = Callable[[Outputs, np.ndarray], Result]  # takes the outputs of one image and its size [2]


class Network:
    """A file of `onnx_model`, or another artifact, as a function, with the file's content as its weights.

    For a single image each layer uses all cores. The images of a batch run in parallel, each on its share of the cores:
    layer outputs stay in the cache of the core that uses them, and the post-processing of one image overlaps with the
    network of another. A batch as one tensor is slower on a CPU.
    """

    def __init__(self, model: ModelContent, *, runtime: str, cores: int | None = None, path: str | None = None):
        """Open a model.

        Args:
            model: the content of the file.
            runtime: "onnxruntime", "openvino" or "litert".
            cores: number of cores to use; None: all that are available to this process.
            path: the user's file that the model was read from, for messages.
        """
        self._runtime, self._model, self._path = runtime, model, path
        self._cores = cores or available_cores()
        self._lock = threading.Lock()  # the caller may have several threads, and a run overwrites its outputs
        self._all_cores: Run | None = None
        self._streams: queue.SimpleQueue[Run] | None = None

    def __call__(self, images: np.ndarray, sizes: np.ndarray, postprocess: Postprocess[Result]) -> list[Result]:
        """Return the results of `run` for images uint8 [B, H, W, 3] and sizes int32 [B, 2]."""
        each = range(len(images))
        return self.run(
            [({"images": images[i : i + 1], "sizes": sizes[i : i + 1]}, sizes[i]) for i in each], postprocess
        )

    def run(self, inputs: Sequence[tuple[Inputs, np.ndarray]], postprocess: Postprocess[Result]) -> list[Result]:
        """Return the results of `postprocess` for the outputs of each image, and its size [2].

        `postprocess` is called in a thread and must copy the outputs that it keeps, because the next image overwrites
        them.
        """
        if len(inputs) == 1 or self._cores == 1:
            with self._lock:
                if self._all_cores is None:
                    [self._all_cores] = self._open(1, self._cores)
                return [postprocess(self._outputs(self._all_cores, image), size) for image, size in inputs]
        count = min(self._cores, _MAX_STREAMS)
        with self._lock:
            if self._streams is None:
                opened = self._open(count, self._cores // count)
                self._streams = queue.SimpleQueue()
                for stream in opened:
                    self._streams.put(stream)
        streams = self._streams

        def in_free_stream(image: tuple[Inputs, np.ndarray]) -> Result:
            stream = streams.get()
            try:
                return postprocess(self._outputs(stream, image[0]), image[1])
            finally:
                streams.put(stream)

        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(in_free_stream, inputs))

    def _open(self, streams: int, threads: int) -> Sequence[Run]:
        """Return `streams` functions that can be called in parallel."""
        with self._input_errors("open"):
            return _RUNTIMES[self._runtime](self._model, streams, threads)

    def _outputs(self, run: Run, inputs: Inputs) -> Outputs:
        with self._input_errors("run"):
            return run(inputs)

    @contextlib.contextmanager
    def _input_errors(self, action: str) -> Iterator[None]:
        """Raise InputError if the runtime rejects the user's file; some damage is detected only when it runs."""
        try:
            yield
        except Exception as error:  # each runtime has its own exception types
            if self._path is None:
                raise
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = printable(" ".join(" ".join(lines[-3:]).split()))  # it may contain names of the user's file
            reason = reason if len(reason) <= 300 else f"..{reason[-300:]}"  # the cause is at the end
            raise InputError(
                f"{self._path}: {self._runtime} cannot {action} it ({reason}); is the file complete?"
            ) from error


def copied(outputs: Outputs, size: np.ndarray) -> Outputs:
    """Copy the outputs of one image, which the next image would overwrite."""
    return tuple(map(np.copy, outputs))


def _onnxruntime(model: ModelContent, streams: int, threads: int) -> Sequence[Run]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # The threads of all streams together; each stream also uses its caller's thread
    options.intra_op_num_threads = streams * (threads - 1) + 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_free_dimension_override_by_name("B", 1)  # known shapes let it fuse sums with convolutions
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    named = any(isinstance(side, str) for output in session.get_outputs() for side in output.shape[1:])
    stream = _NewOutputs if named else _BoundOutputs  # a dimension with a name varies between images
    return [stream(session) for _ in range(streams)]


class _NewOutputs:
    """A session of ONNX Runtime whose output shapes vary between images."""

    def __init__(self, session):
        self._session = session

    def __call__(self, inputs: Inputs) -> Outputs:
        return tuple(output[0] for output in self._session.run(None, inputs))


class _BoundOutputs:
    """A session of ONNX Runtime with preallocated outputs: new memory costs a page fault per 4 KB."""

    def __init__(self, session):
        self._session, self._binding = session, session.io_binding()
        buffers = {
            output.name: np.empty((1, *output.shape[1:]), _DTYPES[output.type]) for output in session.get_outputs()
        }
        for name, buffer in buffers.items():
            self._binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        self._outputs = tuple(buffer[0] for buffer in buffers.values())

    def __call__(self, inputs: Inputs) -> Outputs:
        inputs = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in inputs.items():  # the binding keeps the address and not the array
            self._binding.bind_cpu_input(name, array)
        self._session.run_with_iobinding(self._binding)
        return self._outputs


@kept_signal_stack()
def _openvino(model: ModelContent, streams: int, threads: int) -> Sequence[Run]:
    import openvino

    core = openvino.Core()
    network = core.read_model(*model) if isinstance(model, tuple) else core.read_model(model)
    sides = {port.any_name: list(port.partial_shape) for port in network.inputs}
    if "images" in sides:
        network.reshape({name: [1, *(side.get_length() for side in shape[1:])] for name, shape in sides.items()})
    compiled = core.compile_model(
        network,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY" if streams == 1 else "THROUGHPUT",
            "INFERENCE_PRECISION_HINT": "f32",
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": streams * threads,
        },
    )
    ready = [_OpenvinoRequest(compiled) for _ in range(streams)]
    # OpenVINO's Python module creates tables in its first call; two threads that do this at the same time deadlock (one
    # holds the interpreter lock, the other the table's lock).
    shapes = {
        port: [side.get_length() if side.is_static else _ANY_SIDE for side in port.partial_shape]
        for port in compiled.inputs
    }
    ready[0]({port.any_name: np.zeros(shape, port.element_type.to_dtype()) for port, shape in shapes.items()})
    return ready


class _OpenvinoRequest:
    """A request of a compiled OpenVINO network."""

    def __init__(self, compiled):
        self._compiled, self._request = compiled, compiled.create_infer_request()

    def __call__(self, inputs: Inputs) -> Outputs:
        outputs = self._request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return tuple(outputs[port][0] for port in self._compiled.outputs)


def _litert(model: ModelContent, streams: int, threads: int) -> Sequence[Run]:
    return [
        _LitertInterpreters(model if isinstance(model, tuple) else (model,), threads=threads) for _ in range(streams)
    ]


class _LitertInterpreters:
    """Interpreters of LiteRT: a network, and optionally the post-processing that follows it."""

    def __init__(self, contents: tuple[bytes, ...], *, threads: int):
        from ai_edge_litert.interpreter import Interpreter

        interpreters = [Interpreter(model_content=content, num_threads=threads) for content in contents]
        with silenced_stderr():  # LiteRT prints its delegate there
            for interpreter in interpreters:
                interpreter.allocate_tensors()
        self._network, *self._postprocessing = (interpreter.get_signature_runner() for interpreter in interpreters)
        self._is_integer = "sizes" not in self._network.get_input_details()  # a full-integer file

    def __call__(self, inputs: Inputs) -> Outputs:
        images, sizes = inputs["images"], inputs["sizes"]
        if self._is_integer:
            return self._integer_outputs(self._network(images=np.ascontiguousarray(images)), images.shape[1:3])
        outputs = self._network(images=np.ascontiguousarray(images), sizes=np.ascontiguousarray(sizes))
        for detections in self._postprocessing:
            outputs = detections(**outputs, sizes=np.ascontiguousarray(sizes))
        return tuple(outputs[name][0] for name in DETECTIONS)

    def _integer_outputs(self, outputs: dict[str, np.ndarray], size: tuple[int, ...]) -> Outputs:
        """Return boxes in pixels, scores and classes."""
        boxes, scores, classes = (outputs[name][0] for name in DETECTIONS)
        scores = np.where(np.arange(len(scores)) < outputs["count"][0], scores, np.float32(0))
        return boxes * np.array([*size, *size], np.float32), scores, classes.astype(np.int32)


_RUNTIMES = {"onnxruntime": _onnxruntime, "openvino": _openvino, "litert": _litert}


@dataclass(frozen=True)
class Predictor:
    """Detection in batches of network inputs: images uint8 [B, H, W, 3] and sizes int32 [B, 2], their valid area.

    Attributes:
        detect: function from images and sizes to arrays or tensors, boxes in pixels of the network input.
        outputs, postprocess: its two steps, if it has them: network outputs of images and sizes, and detections of
            outputs and sizes.
    """

    detect: Callable[[Tensor, Tensor], Detections]
    outputs: Any = None
    postprocess: Any = None

    def __call__(self, images: Tensor, sizes: Tensor, scales: Tensor) -> Detections:
        """Return arrays, boxes in pixels of the original images and clipped to them. scales: see `Batch`."""
        detections = fetched(self.detect(images, sizes))
        limits = np.tile(np.asarray(sizes, np.float32), 2)[:, None]
        return detections._replace(boxes=np.clip(detections.boxes, 0, limits) * np.tile(np.asarray(scales), 2)[:, None])


def fetched(detections: Detections) -> Detections:
    """Return the same detections as arrays on the host."""
    return Detections(*(None if values is None else np.asarray(values) for values in detections))
