"""The machine that measures, and the cells that it cannot run."""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from typing import NamedTuple

from program_support.errors import InputError
from program_support.processor import available_cores, processor_name

PRECISIONS = {"fp32": "float32", "tf32": "float32", "amp": "mixed_float16", "bf16": "mixed_bfloat16"}  # to --precision


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


class Machine(NamedTuple):
    """This machine: `count` GPUs, or processes that its cores can run."""

    device: str  # gpu or cpu
    name: str
    count: int
    compute_capability: float
    has_horovod: bool
    details: str = ""  # memory, driver and CUDA, as far as known

    @classmethod
    def here(cls, device: str) -> "Machine":
        """Return this machine with a device: gpu, cpu, or auto (GPUs if there are any).

        Raises:
            InputError: for gpu if there is none.
        """
        query = "--query-gpu=name,compute_cap,driver_version,memory.total"
        gpus = "" if device == "cpu" else _nvidia_smi(query, "--format=csv,noheader,nounits")
        if device == "gpu" and not gpus:
            raise InputError("--device=gpu: nvidia-smi shows none; expected --device=cpu or auto")
        has_horovod = importlib.util.find_spec("horovod") is not None
        if not gpus:
            cores = available_cores()
            return cls("cpu", f"CPU with {cores} cores", cores, 0.0, has_horovod, _host_memory())
        name, capability, driver, memory = gpus.splitlines()[0].rsplit(", ", 3)
        details = f"{int(memory):,} MiB, driver {driver}{_cuda()}"
        return cls("gpu", name, len(gpus.splitlines()), float(capability), has_horovod, details)

    def skip_reason(self, cell: Cell) -> str:
        """Return the reason why a cell cannot run on this machine; empty if it can."""
        if cell.gpus > self.count:
            here = f"{self.name} here, no GPU"
            return here if self.device == "cpu" else f"{self.count} GPU{'s' * (self.count != 1)} here"
        if cell.mode == "inference" and cell.gpus > 1:
            return "inference is one process"
        if cell.gpus > 1 and not self.has_horovod:
            return "Horovod is not installed: bash scripts/install_horovod.sh"
        if self.device == "cpu" and cell.precision in ("tf32", "amp"):
            return f"{cell.precision} is for GPUs, {self.name} here"
        if cell.precision == "tf32" and self.compute_capability < 8.0:  # older than Ampere
            return f"{self.name} has no TF32"
        return ""

    @property
    def description(self) -> str:
        """Return GPU or CPU, processor, cores, memory and operating system, for the head of a table."""
        try:
            system = platform.freedesktop_os_release()["PRETTY_NAME"]
        except (OSError, KeyError):
            system = platform.system()
        kernel = f"{platform.system()} {platform.release()}"
        return f"{self.name}, {self.details}; {processor_name()}, {_host_memory()} of RAM, {system}, {kernel}"


def _cuda() -> str:
    """Return the newest CUDA that the driver supports, and the installed versions of CUDA and cuDNN."""
    driver = re.search(r"CUDA Version: *([\d.]+)", _nvidia_smi())
    text = f", CUDA {driver[1]} by the driver" if driver else ""
    for name, package in (("CUDA", "nvidia-cuda-runtime-cu12"), ("cuDNN", "nvidia-cudnn-cu12")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            text += f", {name} {importlib.metadata.version(package)} installed"
    return text


def _nvidia_smi(*words: str) -> str:
    """Return the output of nvidia-smi; empty if it is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return ""
    done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else ""


def _host_memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**20:,.0f} MiB"
