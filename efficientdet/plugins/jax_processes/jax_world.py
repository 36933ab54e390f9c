"""The processes of one training under JAX: their connection and their collective operations.

Each process has devices of its own. A training step is one program over the devices of all processes (see
`devices/mesh.py`); everything else runs on the devices of one process.
"""

import atexit
import contextlib
import hashlib
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state  # the coordination service has no public interface

from efficientdet.devices.distributed import STALL_SECONDS, WRITING_FACTOR, World, ended_after
from efficientdet.devices.mesh import device_count, replicated, shard_batch
from efficientdet.plugins.jax_processes.peers import Peers, exit_at_once, one_line
from efficientdet.plugins.jax_processes.rendezvous import Place, is_loopback, rank_on_host
from program_support.command_line import USER_ERROR_EXIT_CODE
from program_support.errors import InputError

_CONNECTION_SECONDS = 60  # limit for processes that have arrived
_HEARTBEAT_SECONDS = 1200  # busy or paused machines miss heartbeats for minutes; `peers` finds lost processes at once
_CONNECTION_ERRORS = ("Gloo", "NCCL", "coordination service", "CoordinationService")
_SECONDS_BETWEEN_CHECKS = 1.0  # checks whether the processes that are waited for have ended
_PART = 64 << 20  # bytes of a message with weights, which process 0 keeps until all have read it


class HostValues:
    """The exchange of host values between processes; all call its methods in the same order.

    It goes through the key-value store of JAX's coordination service. No program on the devices takes part: its
    collective operations could meet those of a training step in flight.
    """

    def __init__(self, client: Any, peers: Peers):
        """client: of JAX's coordination service."""
        self._client, self._peers, self._rounds, self._last = client, peers, count(), ""

    def gather(self, value, *, seconds: float) -> list:
        """Return the picklable values of all processes, in order of number; wait at most `seconds`, 0: forever."""
        return [pickle.loads(each) for each in self._exchange(pickle.dumps(value), seconds=seconds)]

    def broadcast(self, arrays: Sequence[np.ndarray], *, seconds: float) -> list[np.ndarray]:
        """Return the arrays of process 0; the others have arrays of the same shapes and types.

        Usually all are equal, drawn from the same seed or read from the same file, and nothing but a hash is sent.
        """
        content = b"".join(array.tobytes() for array in arrays)
        if len({*self.gather(hashlib.sha256(content).digest(), seconds=seconds)}) == 1:
            return list(arrays)
        is_first = self._peers.number == 0
        parts = [content[start : start + _PART] for start in range(0, len(content), _PART)]
        content = b"".join(self._exchange(part if is_first else b"", seconds=seconds)[0] for part in parts)
        ends = np.cumsum([array.nbytes for array in arrays])[:-1]
        return [
            part.view(array.dtype).reshape(array.shape)
            for array, part in zip(arrays, np.split(np.frombuffer(content, np.uint8), ends), strict=True)
        ]

    def _exchange(self, message: bytes, *, seconds: float) -> list[bytes]:
        folder, last = f"host_values/{next(self._rounds)}", self._last
        self._last = f"{folder}/{self._peers.number}"
        self._client.key_value_set_bytes(self._last, message)
        ends = time.monotonic() + seconds if seconds else float("inf")
        messages = [
            message if number == self._peers.number else self._received(f"{folder}/{number}", number, ends=ends)
            for number in range(self._peers.count)
        ]
        if last:  # all have come to this round, and so have read those before
            self._client.key_value_delete(last)
        return messages

    def _received(self, key: str, number: int, *, ends: float) -> bytes:
        while True:
            self._peers.raise_if_ended()
            try:
                return self._client.blocking_key_value_get_bytes(key, round(1000 * _SECONDS_BETWEEN_CHECKS))
            except RuntimeError as error:  # JaxRuntimeError
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if time.monotonic() >= ends:
                raise InputError(
                    f"process {self._peers.number} of {self._peers.count} waited too long for process {number}, on "
                    f"{self._peers.names[number]}, which hangs; EFFICIENTDET_STALL_SECONDS sets how long; the same "
                    "command resumes from the last checkpoint"
                )


@dataclass(frozen=True, kw_only=True)
class _JaxWorld(World):
    """One of several processes connected by JAX."""

    peers: Peers
    values: HostValues

    @property
    def replicas(self) -> int:
        return 1

    def broadcast(self, variables: Sequence) -> None:
        arrays = [np.asarray(variable.value) for variable in variables]
        received = self.values.broadcast(arrays, seconds=WRITING_FACTOR * _stall_seconds())
        for variable, array, value in zip(variables, arrays, received, strict=True):
            if value is not array:
                variable.assign(value)

    def gather(self, value) -> list:
        return self.values.gather(value, seconds=WRITING_FACTOR * _stall_seconds())

    def barrier(self) -> None:
        self.gather(None)

    @contextlib.contextmanager
    def deadline(self, factor: float = 1.0) -> Iterator[None]:
        with self.peers.waiting(), ended_after(factor * _stall_seconds()):
            yield

    def __exit__(self, kind, error, traceback) -> None:
        if error is None:
            return  # JAX waits for all processes when Python exits
        is_refused = isinstance(error, InputError)
        is_lost = isinstance(error, RuntimeError | ValueError) and not is_refused and _is_of_connection(error)
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        atexit.register(exit_at_once, USER_ERROR_EXIT_CODE if is_lost or is_refused else code)
        cause = self.peers.reason_of_lost_connection() if is_lost else None
        self.peers.leave(one_line(str(error) if is_refused else f"{type(error).__name__}: {error}"))
        if is_lost:
            raise InputError(
                cause
                or f"process {self.rank} of {self.size} lost the connection to another one ({one_line(str(error))}); "
                "the same command resumes from the last checkpoint"
            ) from error


def join_processes(place: Place, peers: Peers, *, gpus: list[int] | None, num_devices: int | None) -> World:
    """Connect to the other processes of this job.

    Args:
      place: the place of this process.
      peers: the processes, all of which are ready to connect.
      gpus: numbers of the GPUs of this process; None: all, or those in JAX_LOCAL_DEVICE_IDS.
      num_devices: limit of the number of devices of each process; None: no limit.

    Raises:
      InputError: the processes have different numbers of devices, or fewer than `num_devices`.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would handle SIGTERM
    jax.distributed.initialize(
        place.address,
        place.count,
        place.number,
        local_device_ids=gpus,
        cluster_detection_method="deactivate",
        initialization_timeout=_CONNECTION_SECONDS,
        heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=int(WRITING_FACTOR * STALL_SECONDS),
        coordinator_bind_address=place.address if is_loopback(place.host) else None,
    )
    atexit.register(setattr, peers, "is_done", True)  # runs before JAX's handler, which waits for all processes
    counts = Counter(device.process_index for device in jax.devices())
    values = HostValues(global_state.client, peers)
    _require_equal([counts[number] for number in range(place.count)])
    devices = device_count(num_devices)
    _require_equal(values.gather(devices, seconds=_stall_seconds()))
    _create_communicators(devices, place.count)
    local_rank, local_size = rank_on_host(peers.names, place.number)
    return _JaxWorld(
        rank=place.number,
        size=place.count,
        local_rank=local_rank,
        local_size=local_size,
        devices=devices,
        peers=peers,
        values=values,
    )


def _is_of_connection(error: Exception) -> bool:
    return any(name in str(error) for name in _CONNECTION_ERRORS)


def _require_equal(counts: list[int]) -> None:
    if len({*counts}) > 1:
        raise InputError(f"the processes have {', '.join(map(str, counts))} devices: expected the same number in each")


def _create_communicators(devices: int, processes: int) -> None:
    """Run a small program over all devices, which connects them while all processes are here.

    Gloo waits 30 seconds for the others; a process that compiles the first step may take longer.
    """
    ones = shard_batch(np.ones(devices, np.float32), devices, processes)
    total = jax.jit(lambda values: values.sum(), out_shardings=replicated(devices, processes))(ones)
    assert total == devices * processes


def _stall_seconds() -> float:
    return float(os.environ.get("EFFICIENTDET_STALL_SECONDS") or STALL_SECONDS)
