"""Programs in processes of their own, under JAX on the CPU or under TensorFlow."""

import json
import os
import socket
import sys
from pathlib import Path

import forked_programs

TESTS = Path(__file__).resolve().parent


def run_script(*command, **environment):
    """Run a script of this folder, with its arguments, in a fork; it must succeed."""
    done = forked_programs.run(
        [sys.executable, *command],
        timeout=400,
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}", **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]


# Compiled in a third of the time; without optimizations the programs of tests are fast enough.
QUICK_XLA = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)


def compiled_quickly(devices, cache=None):
    """Environment of a program on a number of host devices, whose programs are compiled without optimization.

    cache: folder in which a process finds what it, or an earlier one, has compiled.
    """
    return {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "-1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {QUICK_XLA}",
        **(
            {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
            if cache
            else {}
        ),
    }


def run_under_jax(*command, devices=1, cache=None):
    """Run a script on a number of host devices."""
    run_script(*command, **compiled_quickly(devices, cache))


def environment_of_processes(count, folder):
    """Environment of each process of `count` with four devices in all, but for its number."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    return {
        **compiled_quickly(4 // count, folder / "cache"),
        "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
    }


def run_processes(count, trainings, folder, *programs):
    """(exit code, output) of each process of several_trainings.py; four devices in all."""
    environment = {**os.environ, **environment_of_processes(count, folder)}
    command = [sys.executable, str(TESTS / "several_trainings.py"), json.dumps(trainings), json.dumps(programs)]
    processes = [
        forked_programs.start(
            command, env={**environment, "JAX_PROCESS_ID": str(number)}, output=folder / f"output-{number}-{count}"
        )
        for number in range(count)
    ]
    try:
        return [
            (process.wait(timeout=1200), (folder / f"output-{number}-{count}").read_text())
            for number, process in enumerate(processes)
        ]
    finally:
        for process in processes:
            process.kill_session()
