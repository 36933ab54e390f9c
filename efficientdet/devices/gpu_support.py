"""Report GPUs that the installed libraries cannot use, before the first step fails on them."""

import ctypes
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import NamedTuple

from program_support.errors import InputError

Version = tuple[int, ...]

# NVIDIA's support matrix: cuDNN 9.10.2 is the last release for compute capability 5.0 to 7.0 (Maxwell, Pascal, Volta).
_CUDNN_WITHOUT_VOLTA, _TURING = (9, 11), (7, 5)


class Gpu(NamedTuple):
    """An NVIDIA GPU and its compute capability, such as (9, 0)."""

    name: str
    capability: Version


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
        if capability < _TURING and (cudnn := cudnn_version()) and cudnn >= _CUDNN_WITHOUT_VOLTA:
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


def cudnn_version() -> Version | None:
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
