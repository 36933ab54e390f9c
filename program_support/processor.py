"""The processor: its name, its instructions, and the number of cores available to this process."""

import math
import os
import platform
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_CPU_INFORMATION = Path("/proc/cpuinfo")
_DOT_PRODUCTS = {"avx_vnni", "avx512_vnni", "amx_int8"}  # instructions for int8 products, summed in 32 bits


def available_cores(quota_file: Path = _QUOTA) -> int:
    """Return the number of cores that this process may use.

    Under taskset, Slurm or in a container these are fewer than the machine has.

    quota_file: the container's CPU limit in Linux (cgroup 2), microseconds of CPU time and of the period, or `max`.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit
        return cores


def processor_name() -> str:
    """Return the processor's name and the number of available cores, such as `AMD EPYC 7B13, 2 cores`."""
    name = _cpu_information("model name") or platform.processor() or platform.machine()
    return f"{name}, {available_cores()} cores"


def sums_of_bytes_saturate(cpu_information: Path = _CPU_INFORMATION) -> bool:
    """Return whether the CPU sums products of int8 and uint8 in 16 bits, which may overflow: x86 before VNNI."""
    flags = _cpu_information("flags", cpu_information).split()
    return "avx2" in flags and not _DOT_PRODUCTS.intersection(flags)


def _cpu_information(key: str, file: Path = _CPU_INFORMATION) -> str:
    """Return a field of /proc/cpuinfo for the first core; empty on other systems."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")
