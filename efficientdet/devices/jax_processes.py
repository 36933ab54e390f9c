"""The processes of one training under JAX: their connection and their collective operations.

Each process has devices of its own. A training step is one program over the devices of all processes (see `mesh`);
everything else runs on the devices of one process.
"""

import atexit
import contextlib
import os
import pickle
import sys
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from efficientdet.devices.distributed import STALL_SECONDS, WRITING_FACTOR, World, ended_after
from efficientdet.devices.mesh import device_count
from efficientdet.devices.rendezvous import rank_on_host
from program_support.command_line import USER_ERROR_EXIT_CODE
from program_support.errors import InputError

_CONNECTION_SECONDS = 60  # of processes that have arrived
_HEARTBEAT_SECONDS = 1200  # busy or paused machines miss heartbeats for minutes; `deadline` finds lost processes sooner


class _JaxWorld(World):
    """One of several processes connected by JAX."""

    @property
    def replicas(self) -> int:
        return 1

    def broadcast(self, variables: Sequence) -> None:
        arrays = [np.asarray(variable.value) for variable in variables]
        message = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
        with self.deadline(WRITING_FACTOR):
            message = np.asarray(multihost_utils.broadcast_one_to_all(message))
        ends = np.cumsum([array.nbytes for array in arrays])[:-1]
        for variable, array, part in zip(variables, arrays, np.split(message, ends), strict=True):
            variable.assign(part.view(array.dtype).reshape(array.shape))

    def gather(self, value) -> list:
        message = np.frombuffer(pickle.dumps(value), np.uint8)
        with self.deadline(WRITING_FACTOR):
            sizes = multihost_utils.process_allgather(np.int32(message.size))
            longest = 1 << int(sizes.max() - 1).bit_length()  # a power of two: each size is compiled
            messages = multihost_utils.process_allgather(np.pad(message, (0, longest - message.size)))
        return [pickle.loads(found[:size].tobytes()) for found, size in zip(messages, sizes, strict=True)]

    def barrier(self) -> None:
        self.gather(None)

    def deadline(self, factor: float = 1.0) -> contextlib.AbstractContextManager:
        return ended_after(factor * _stall_seconds())

    def __exit__(self, kind, error, traceback) -> None:
        if error is None:
            return  # JAX waits for all processes when Python exits
        lost = "Gloo" in str(error)  # a JaxRuntimeError in a step, a ValueError elsewhere
        code = error.code if isinstance(error, SystemExit) else 1
        atexit.register(_exit_at_once, USER_ERROR_EXIT_CODE if lost or isinstance(error, InputError) else code)
        if lost:
            raise InputError(
                f"process {self.rank} of {self.size} lost the connection to another one, whose log has the reason; the "
                "same command resumes from the last checkpoint"
            ) from error


def join_processes(
    address: str, hosts: Sequence[str], number: int, *, gpus: list[int] | None, num_devices: int | None
) -> World:
    """Connect to the other processes of this job.

    Args:
      address: host:port of process 0.
      hosts: the name of the host of each process; all of them are ready to connect.
      number: number of this process.
      gpus: numbers of the GPUs of this process; None: all, or those in JAX_LOCAL_DEVICE_IDS.
      num_devices: limit of the number of devices of each process; None: no limit.

    Raises:
      InputError: the processes have different numbers of devices, or fewer than `num_devices`.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    jax.distributed.initialize(
        address,
        len(hosts),
        number,
        local_device_ids=gpus,
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECTION_SECONDS,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=int(WRITING_FACTOR * STALL_SECONDS),
    )
    counts = Counter(device.process_index for device in jax.devices())
    if len({*counts.values()}) > 1:
        raise InputError(
            f"the processes have {', '.join(str(counts[each]) for each in range(len(hosts)))} devices: expected the "
            "same number in each"
        )
    local_rank, local_size = rank_on_host(hosts, number)
    return _JaxWorld(
        rank=number, size=len(hosts), local_rank=local_rank, local_size=local_size, devices=device_count(num_devices)
    )


def _stall_seconds() -> float:
    return float(os.environ.get("EFFICIENTDET_STALL_SECONDS") or STALL_SECONDS)


def _exit_at_once(code) -> None:
    """Exit without JAX's handler, which would wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
