"""Functions of the Keras backend: compile, copy, wait, trace, and describe the machine.

Only the backend in use is imported.
"""

import ctypes
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
from keras import ops

from efficientdet.devices.runtime import accelerator_count
from program_support.processor import processor_name

Batch = TypeVar("Batch")
Measuring = Callable[[str], AbstractContextManager]

_SIDE, _SIDE_ON_CPU = 8192, 1024
_QUEUED = 4  # operations that are queued at once, so that an accelerator does not wait for the next
_PACKAGES = ("tensorflow", "keras", "jax", "jaxlib", "horovod", "numpy", "onnxruntime", "openvino")


def backend_name() -> str:
    """Return the name of the backend, "tensorflow" or "jax"."""
    return keras.backend.backend()


Weights = Sequence[np.ndarray]  # values of the variables of a network, in their order


def present_weights(network: keras.Model) -> Weights:
    """Return copies of the weights, for `compiled`: programs of one network share them."""
    return [np.asarray(variable) for variable in network.variables]


def compiled(function: Callable, network: keras.Model, *, use_xla: bool, constants: Weights | None = None) -> Callable:
    """Compile a function of tensors into one program, with the weights of `network`.

    constants: weights that are part of the program: conversions and transpositions of weights are computed by the
        compiler, and a call passes no weights. None: each call uses the weights of its time.

    Under JAX, arguments [B, ...] are sharded over the devices that the weights are replicated on. If B is not divisible
    by their number, or Gloo connects them, one of them runs the program.
    """
    if _is_jax():
        return _jitted(function, network, constants)
    import tensorflow as tf

    if constants is not None:
        function = _with_weights(function, network.variables, constants)
    return tf.function(function, jit_compile=use_xla, reduce_retracing=True, autograph=False)


def _with_weights(function: Callable, variables: Sequence[keras.Variable], weights: Weights) -> Callable:
    """Return a function in whose programs the variables are constants with these values."""

    def run(*arguments):
        constants = map(ops.convert_to_tensor, weights)
        with keras.StatelessScope(state_mapping=list(zip(variables, constants, strict=True))):
            return function(*arguments)

    return run


def replicate(network: keras.Model, *, batch_size: int) -> None:
    """Copy a network's weights to as many devices of this process as can share batches equally.

    Under JAX, `compiled` then shards batches over them.
    """
    if _is_jax():
        import jax

        from efficientdet.devices.mesh import device_count, replicated

        count = max(count for count in range(1, device_count(None) + 1) if batch_size % count == 0)
        if count > 1:
            for variable in network.variables:
                variable.assign(jax.device_put(variable.value, replicated(count)))


def assign(variables: Sequence[keras.Variable], arrays: Sequence[np.ndarray]) -> None:
    """Set variables; under JAX the values are placed on the devices that the present ones are on."""
    values: Sequence = arrays
    if _is_jax():
        import jax

        values = jax.device_put(list(arrays), [variable.value.sharding for variable in variables])
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def to_device(*arrays: np.ndarray) -> list:
    """Copy arrays to tensors of the backend and wait for the copies."""
    return wait([ops.convert_to_tensor(array) for array in arrays])


def device_prefetch(
    batches: Iterable[Batch], *, devices: int = 1, processes: int = 1, measuring: Measuring = nullcontext
) -> Iterator[Batch]:
    """Yield the same batches (any nest of arrays); under JAX a thread takes and copies the next one during a step.

    devices, processes: number of devices of each process that a batch is sharded over, and of processes.
    measuring: measures the time of the copies, named "copying".
    Arrays that a device would truncate to 32 bits, such as image ids, stay on the host as NumPy arrays. An error of
    `batches` is raised after the batches before it. Under TensorFlow the batches are passed through unchanged.
    """
    return _copied_ahead(iter(batches), devices, processes, measuring) if _is_jax() else iter(batches)


def _copied_ahead(batches: Iterator[Batch], devices: int, processes: int, measuring: Measuring) -> Iterator[Batch]:
    from efficientdet.devices.mesh import shard_batch

    def copied() -> Batch:
        batch = next(batches)
        with measuring("copying"):
            return wait(shard_batch(batch, devices, processes))

    def drop() -> None:  # by the thread that has used it
        nonlocal batches
        batches = iter(())

    pool = ThreadPoolExecutor(1, thread_name_prefix="device_prefetch")
    ahead = pool.submit(copied)
    try:
        while True:
            try:
                batch = ahead.result()
            except StopIteration:
                return
            ahead = pool.submit(copied)
            yield batch
    finally:
        ahead.cancel()
        with suppress(RuntimeError):  # the interpreter ends, after an error
            pool.submit(drop)
        pool.shutdown(wait=False)


def wait(tensors):
    """Wait until the tensors are computed, and return them; backends return before an accelerator has finished."""
    if _is_jax():
        import jax

        return jax.block_until_ready(tensors)
    import tensorflow as tf

    tf.test.experimental.sync_devices()
    return tensors


def trace(folder: str) -> AbstractContextManager:
    """Return a context manager that profiles a block and writes a trace for TensorBoard into the folder."""
    if _is_jax():
        import jax

        return jax.profiler.trace(folder)
    import tensorflow as tf

    return tf.profiler.experimental.Profile(folder)


def device_name() -> str:
    """Return the accelerator's name, such as `NVIDIA H200`; without one, the processor's (see `processor_name`)."""
    if _is_jax():
        import jax

        device = jax.local_devices()[0]
        return processor_name() if device.platform == "cpu" else device.device_kind
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else processor_name()


def peak_device_memory() -> int | None:
    """Return the peak bytes of accelerator memory used by this process; None without one or if unknown."""
    if _is_jax():
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        return None
    return tf.config.experimental.get_memory_info("GPU:0")["peak"]


def peak_host_memory() -> int:
    """Return the peak bytes of host memory used by this process."""
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes on Linux
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def total_device_memory() -> int | None:
    """Return the bytes of accelerator memory, including memory in use; None without one or if unknown.

    Under JAX it is the share that JAX allocates.
    """
    if _is_jax():
        import jax

        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    return _total_cuda_memory(int(gpus[0].name.rsplit(":", 1)[1])) if gpus else None


def total_host_memory() -> int:
    """Return the bytes of memory of the machine, or of the container if it has less."""
    return min(
        [
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        ]
    )


def cgroup_limits(membership: Path, mount: Path) -> Iterator[int]:
    """Yield the memory limit in bytes of each control group of a Linux process, version 1 or 2 (cgroups(7)).

    `membership` lists the groups of the process. A container sees its own group at the top of the `mount`.
    """
    if not membership.is_file():
        return
    for line in membership.read_text(encoding="utf-8").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, name = (mount / "memory", "memory.limit_in_bytes") if controllers else (mount, "memory.max")
        folder = top / group.lstrip("/")
        for place in (folder, *folder.parents):
            if not place.is_relative_to(top):
                break
            limit = (place / name).read_text(encoding="utf-8").strip() if (place / name).is_file() else "max"
            if limit.isdigit():
                yield int(limit)


def _total_cuda_memory(ordinal: int) -> int | None:
    """Return the bytes of a GPU from the CUDA driver, without allocating any; TensorFlow reports only free memory."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, total = ctypes.c_int(), ctypes.c_size_t()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), ordinal)
        or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
    )
    return None if failed else total.value


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed packages that affect performance, by name."""
    by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return by_package


def multiply_adds_per_second(precision: str) -> float:
    """Return the multiply-adds per second of products of square matrices.

    They are computed in the compute dtype of the policy `precision`. The result is the best repetition within a second,
    an upper bound for the kernels of a network.
    """
    side = _SIDE if accelerator_count() > 0 else _SIDE_ON_CPU
    matrix = _noise(precision, side, side)
    return side**3 / min(_repetitions(lambda: ops.matmul(matrix, matrix)))


def separable_multiply_adds_per_second(precision: str) -> float:
    """Return the multiply-adds per second of a block of EfficientNet: 1x1, depthwise 3x3 and 1x1 convolutions.

    It reads and writes more than it computes, as networks of such blocks do. The result is the mean of a second, in
    which other processes of the machine have their share.
    """
    batch = 256 if accelerator_count() > 0 else 4
    shapes = (batch, 16, 16, 112), (1, 1, 112, 672), (3, 3, 672, 1), (1, 1, 672, 112)
    images, kernel, depthwise, projection = (_noise(precision, *shape) for shape in shapes)

    def block() -> Any:
        expanded = ops.relu(ops.conv(images, kernel))
        return ops.conv(ops.relu(ops.depthwise_conv(expanded, depthwise, padding="same")), projection)

    times = _repetitions(block)
    return batch * 16 * 16 * 672 * (112 + 9 + 112) * len(times) / sum(times)


def _noise(precision: str, *shape: int) -> Any:
    noise = np.random.default_rng(0).standard_normal(shape, np.float32)
    return wait(ops.cast(noise, keras.dtype_policies.DTypePolicy(precision).compute_dtype))


def _repetitions(operation: Callable[[], Any]) -> list[float]:
    """Return the seconds of each repetition of an operation within a second."""
    queued, times = _QUEUED if accelerator_count() > 0 else 1, list[float]()
    wait(operation())  # the first one chooses a kernel
    while sum(times) < 1.0:
        started = time.perf_counter()
        for _ in range(queued):
            result = operation()
        wait(result)
        times.append((time.perf_counter() - started) / queued)
    return times


def _is_jax() -> bool:
    return backend_name() == "jax"


def _jitted(function: Callable, network: keras.Model, weights: Weights | None) -> Callable:
    import jax

    from efficientdet.devices.mesh import shard_batch, uses_gloo

    variables = network.variables
    constants = None if weights is None else jax.jit(_with_weights(function, variables, weights))

    @jax.jit
    def run(values, *arguments):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*arguments)

    def call(*arguments):
        devices = len(variables[0].value.sharding.device_set) if variables else 1
        divides = all(len(array) % devices == 0 for array in jax.tree.leaves(arguments))
        is_sharded = devices > 1 and not uses_gloo() and divides
        arguments = shard_batch(arguments, devices) if is_sharded else arguments
        arguments = jax.tree.map(jax.numpy.asarray, arguments)
        if constants:
            return constants(*arguments)
        values = [variable.value for variable in variables]
        # On one device all in the same form: a program is compiled again for weights that are placed in another way
        return run(values if is_sharded else [value.addressable_data(0) for value in values], *arguments)

    return call
