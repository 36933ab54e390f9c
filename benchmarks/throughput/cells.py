"""Cells of a matrix, and the machine that runs them."""

import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from program_support.errors import InputError
from program_support.processor import available_cores, processor_name

PRECISIONS = {"fp32": "float32", "tf32": "float32", "amp": "mixed_float16", "bf16": "mixed_bfloat16"}  # to --precision
_TF32_FROM = 8.0  # compute capability: Ampere
_CUDA_PACKAGES = {"CUDA": "nvidia-cuda-runtime-cu12", "cuDNN": "nvidia-cudnn-cu12"}  # of tensorflow[and-cuda]


class Cell(NamedTuple):
    """One measurement: model, mode, GPUs, precision and batch size."""

    model: str
    mode: str  # training or inference
    gpus: int
    precision: str
    batch_size: int  # per GPU

    @property
    def name(self) -> str:
        """Return the name of its files."""
        return f"{self.model}-{self.mode}-{self.gpus}x-{self.precision}-batch-{self.batch_size}"


def cells_of(
    *, model: str, mode: str, gpus: Sequence[int], precisions: Sequence[str], batch_sizes: Sequence[int]
) -> list[Cell]:
    """Return all cells, fewest GPUs first. Raises InputError for an unknown precision."""
    for precision in precisions:
        if precision not in PRECISIONS:
            raise InputError(f"--precision={','.join(precisions)}: expected some of {','.join(PRECISIONS)}")
    return [
        Cell(model, mode, *rest)
        for rest in itertools.product(dict.fromkeys(gpus), dict.fromkeys(precisions), dict.fromkeys(batch_sizes))
    ]


class Machine(NamedTuple):
    """This machine: `count` GPUs, or processes that its cores can run."""

    device: str  # gpu or cpu
    name: str
    count: int
    compute_capability: float
    has_horovod: bool
    details: str = ""  # driver, CUDA and memory, as far as known

    @property
    def description(self) -> str:
        """Return name and details, for the head of a table."""
        return f"{self.name}{', ' * bool(self.details)}{self.details}"

    @classmethod
    def here(cls, device: str) -> "Machine":
        """Return this machine with a device: gpu, cpu, or auto (GPUs if there are any).

        Raises InputError for gpu if there is none.
        """
        gpus = [] if device == "cpu" else _gpus()
        has_horovod = importlib.util.find_spec("horovod") is not None
        if device == "gpu" and not gpus:
            raise InputError("--device=gpu: nvidia-smi shows none; expected --device=cpu or auto")
        if gpus:
            name, capability, driver, mebibytes = gpus[0]
            details = f"{int(mebibytes):,} MiB, driver {driver}{_cuda()}"
            return cls("gpu", name, len(gpus), float(capability), has_horovod, details)
        cores = available_cores()
        return cls("cpu", f"CPU with {cores} cores", cores, 0.0, has_horovod, f"{_host_memory() / 2**20:,.0f} MiB")

    def skip_reason(self, cell: Cell) -> str:
        """Return the reason why a cell cannot run on this machine; empty if it can."""
        if cell.gpus > self.count:
            return (
                f"{self.count} GPU{'s' * (self.count != 1)} here"
                if self.device == "gpu"
                else f"{self.name} here, no GPU"
            )
        if cell.mode == "inference" and cell.gpus > 1:
            return "inference is one process"
        if cell.gpus > 1 and not self.has_horovod:
            return "Horovod is not installed: bash scripts/install_horovod.sh"
        if self.device == "cpu" and cell.precision in ("tf32", "amp"):
            return f"{cell.precision} is for GPUs, {self.name} here"
        if cell.precision == "tf32" and self.compute_capability < _TF32_FROM:
            return f"{self.name} has no TF32"
        return ""


def host_description() -> str:
    """Return processor, cores, memory and operating system of this machine."""
    try:
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        system = platform.system()
    kernel = f"{platform.system()} {platform.release()}"
    return f"{processor_name()}, {_host_memory() / 2**20:,.0f} MiB of RAM, {system}, {kernel}"


def _gpus() -> list[list[str]]:
    """Return name, compute capability, driver and memory in MiB of each GPU."""
    query = "--query-gpu=name,compute_cap,driver_version,memory.total"
    return [line.rsplit(", ", 3) for line in _nvidia_smi(query, "--format=csv,noheader,nounits").splitlines()]


def _cuda() -> str:
    """Return the newest CUDA that the driver supports, and the installed versions of CUDA and cuDNN."""
    driver = re.search(r"CUDA Version: *([\d.]+)", _nvidia_smi())
    found = [f"CUDA {driver[1]} by the driver"] if driver else []
    for name, package in _CUDA_PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(package)} installed")
    return "".join(f", {version}" for version in found)


def _nvidia_smi(*words: str) -> str:
    """Return the output of nvidia-smi; empty if it is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def _host_memory() -> int:
    """Return the machine's bytes of memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
