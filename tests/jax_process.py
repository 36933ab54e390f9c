"""A script in a process of its own under JAX on the CPU, for tests whose own process has loaded TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def run_under_jax(*command, devices=1):
    """Run a script of this folder, with its arguments, on a number of host devices; it must succeed.

    Programs are compiled without optimization, which takes longer than their few steps.
    """
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=TESTS.parent,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
            "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        },
    )
    assert done.returncode == 0, done.stderr[-3000:]
