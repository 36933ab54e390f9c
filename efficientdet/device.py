"""What inference needs of the backend: compile, copy, wait, trace, and say what the machine is.

Only the backend in use is imported.
"""

import os
import platform
import resource
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import metadata

import keras
import numpy as np
from keras import ops

_PACKAGES = ("tensorflow", "keras", "jax", "jaxlib", "numpy", "onnxruntime", "openvino")


def backend_name() -> str:
    """tensorflow or jax."""
    return keras.backend.backend()


def compiled(function: Callable, network: keras.Model, *, use_xla: bool) -> Callable:
    """A function of tensors as one compiled program, with the weights that `network` has at each call."""
    if _is_jax():
        return _jitted(function, network)
    import tensorflow as tf

    return tf.function(function, jit_compile=use_xla, reduce_retracing=True, autograph=False)


def to_device(*arrays: np.ndarray) -> list:
    """The arrays as tensors of the backend, there when this returns."""
    return wait([ops.convert_to_tensor(array) for array in arrays])


def wait(tensors):
    """The same tensors, computed: backends return before an accelerator has finished."""
    if _is_jax():
        import jax

        return jax.block_until_ready(tensors)
    import tensorflow as tf

    tf.test.experimental.sync_devices()
    return tensors


def trace(folder: str) -> AbstractContextManager:
    """The backend's profiler around a block; TensorBoard reads what it writes into the folder."""
    if _is_jax():
        import jax

        return jax.profiler.trace(folder)
    import tensorflow as tf

    return tf.profiler.experimental.Profile(folder)


def device_name() -> str:
    """Such as `NVIDIA H200`, or the processor with the number of cores that this process may use."""
    if _is_jax():
        import jax

        device = jax.local_devices()[0]
        return _processor() if device.platform == "cpu" else device.device_kind
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else _processor()


def peak_device_memory() -> int | None:
    """Most bytes of the accelerator ever in use by this process; None where there is none, or it does not say."""
    if _is_jax():
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def peak_host_memory() -> int:
    """Most bytes of memory that this process ever held."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def versions() -> dict[str, str]:
    """Of Python and of the packages that speed depends on, those installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _is_jax() -> bool:
    return backend_name() == "jax"


def _jitted(function: Callable, network: keras.Model) -> Callable:
    import jax

    variables = network.variables

    @jax.jit
    def run(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments)

    return lambda *arguments: run([variable.value for variable in variables], *map(jax.numpy.asarray, arguments))


def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass  # not Linux
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{name}, {cores} cores"
