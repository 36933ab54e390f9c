"""A script in a process of its own, under JAX on the CPU or with settings that TensorFlow reads once."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def run_script(*command, **environment):
    """Run a script of this folder, with its arguments; it must succeed."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_under_jax(*command, devices=1):
    """Run a script on a number of host devices.

    Programs are compiled without optimization, which takes longer than their few steps.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    run_script(*command, KERAS_BACKEND="jax", JAX_PLATFORMS="cpu", XLA_FLAGS=flags)
