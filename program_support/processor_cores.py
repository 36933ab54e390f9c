"""How many threads are worth starting."""

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def available_cores(quota_file: Path = _QUOTA) -> int:
    """Cores that this process may use: fewer than the machine has under taskset, Slurm, or a container's limit.

    quota_file: microseconds of processor time in each period, or `max`, as Linux shows a container its limit (cgroup 2).
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text(encoding="ascii").split()
        return max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such limit
        return cores
