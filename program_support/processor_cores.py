"""Number of CPU cores available to the process."""

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


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
