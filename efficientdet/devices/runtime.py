"""Runtime settings of a process: precision, compilation and seeds, set once before any network is built."""

import ctypes
import importlib.util
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import NamedTuple

import keras

from efficientdet.devices.runtime_environment import (
    keep_freed_memory,
    launch_convolutions_in_graphs,
    store_compiled_programs,
)
from program_support.errors import InputError
from program_support.processor import available_cores

SLOW_BFLOAT16 = (
    "warning: --precision=mixed_bfloat16 saves memory but is slower than float32 on a CPU, where depthwise "
    "convolutions and activations take up to 4 times as long in 16 bits; for speed use --precision=float32"
)
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
Version = tuple[int, ...]

# NVIDIA's support matrix: cuDNN 9.10.2 is the last release for compute capability 5.0 to 7.0 (Maxwell, Pascal, Volta).
_CUDNN_WITHOUT_VOLTA, _TURING = (9, 11), (7, 5)


class Gpu(NamedTuple):
    """An NVIDIA GPU and its compute capability, such as (9, 0)."""

    name: str
    capability: Version


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """Settings of the computation: the dtype policy, and whether XLA compiles each step."""

    precision: str
    use_xla: bool


def start_runtime(
    *,
    precision: str | None = None,
    amp: bool | None = None,
    use_xla: bool | None = None,
    seed: int | None = None,
    deterministic: bool = False,
    owns_process: bool = True,
) -> Runtime:
    """Set up the runtime; mixed precision and XLA are by default on with an accelerator and off on a CPU.

    `precision` overrides `amp` (True: mixed_float16). Python, NumPy and the backend are seeded. `deterministic`: the
    same bits from the same start, with the same number of cores. `owns_process`: False in a third-party process, whose
    allocator is not changed.
    """
    if precision is not None and precision not in PRECISIONS:
        raise InputError(f"--precision={precision}: expected one of {', '.join(PRECISIONS)}")
    if keras.backend.backend() == "jax":
        hide_gpus_from_tensorflow()
        launch_convolutions_in_graphs()
    accelerated = accelerator_count() > 0
    if accelerated:
        if keras.backend.backend() == "jax":
            store_compiled_programs()
        check_gpus(_gpus(), newest_kernels=_newest_kernels())
    if owns_process and not accelerated:
        keep_freed_memory()
    if precision is None:
        precision = "mixed_float16" if (accelerated if amp is None else amp) else "float32"
    if precision == "mixed_bfloat16" and not accelerated:
        print(SLOW_BFLOAT16, file=sys.stderr)
    if deterministic and keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_op_determinism()
        tf.config.threading.set_intra_op_parallelism_threads(available_cores())
        tf.config.threading.set_inter_op_parallelism_threads(1)
    if seed is not None:
        keras.utils.set_random_seed(seed)
    return Runtime(precision=precision, use_xla=accelerated if use_xla is None else use_xla)


def accelerator_count() -> int:
    """Return the number of GPUs (or TPU cores) of the backend; TensorFlow's GPU memory is set to grow as needed."""
    if keras.backend.backend() == "jax":
        import jax

        return sum(device.platform != "cpu" for device in jax.local_devices())
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    return len(gpus)


def check_gpus(gpus: Iterable[Gpu], *, newest_kernels: Version | None) -> None:
    """Warn on standard error of a GPU newer than TensorFlow's kernels.

    Args:
      gpus: the GPUs in use.
      newest_kernels: the highest compute capability that TensorFlow has kernels for; None if TensorFlow is not the
          backend.

    Raises:
      InputError: the installed cuDNN no longer supports a GPU.
    """
    for name, capability in sorted(set(gpus)):
        if capability < _TURING and (cudnn := _cudnn_version()) and cudnn >= _CUDNN_WITHOUT_VOLTA:
            raise InputError(
                f"{name}: cuDNN {_dotted(cudnn)} does not support compute capability {_dotted(capability)}; "
                "install the last version that does: python -m pip install 'nvidia-cudnn-cu12<9.11'"
            )
        # Kernels of one major version run on every GPU of that version; other versions need their own.
        if newest_kernels and capability[0] > newest_kernels[0]:
            print(
                f"warning: {name}: TensorFlow has kernels up to compute capability {_dotted(newest_kernels)}, this GPU "
                f"has {_dotted(capability)}; expect XLA to end the process with 'PTX version does not support target'. "
                "Use a GPU up to Hopper, or KERAS_BACKEND=jax with jax[cuda12]: docs/guides/clusters.md",
                file=sys.stderr,
                flush=True,
            )


def _cudnn_version() -> Version | None:
    """Return the version of the cuDNN that the process has loaded or pip has installed; None if neither is known."""
    try:
        number = ctypes.CDLL("libcudnn.so.9").cudnnGetVersion()
    except OSError:  # neither loaded nor on the loader's path
        try:
            return tuple(map(int, metadata.version("nvidia-cudnn-cu12").split(".")[:3]))
        except metadata.PackageNotFoundError:
            return None
    return number // 10_000, number // 100 % 100, number % 100


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _gpus() -> list[Gpu]:
    """Return the NVIDIA GPUs; other accelerators have no compute capability."""
    if keras.backend.backend() == "jax":
        import jax

        return [
            Gpu(device.device_kind, tuple(map(int, capability.split("."))))
            for device in jax.local_devices()
            if (capability := getattr(device, "compute_capability", None))
        ]
    import tensorflow as tf

    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [Gpu(one["device_name"], one["compute_capability"]) for one in details if "compute_capability" in one]


def _newest_kernels() -> tuple[int, int] | None:
    """Return the highest compute capability that TensorFlow was built for; None under JAX, which compiles kernels."""
    if keras.backend.backend() == "jax":
        return None
    import tensorflow as tf

    kernels = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", ())  # "sm_80", .., "compute_90"
    return max((divmod(int(re.sub(r"\D", "", kernel)), 10) for kernel in kernels), default=None)


def hide_gpus_from_tensorflow() -> None:
    """Hide GPUs from TensorFlow, which reads records under JAX and would otherwise allocate the remaining memory."""
    if importlib.util.find_spec("tensorflow"):
        import tensorflow as tf

        tf.config.set_visible_devices([], "GPU")


def skip_graph_rewriting() -> None:
    """Disable TensorFlow's graph optimizer, which takes longer than tracing a training step and gains nothing.

    Measured on two cores, D0 at 256, batch 8: first step after 25 s instead of 38 s, later steps equal (1.2 s).
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
