"""The processes of one training, how a process joins the others, and the only interface to Horovod.

Several processes join each other, over Horovod or JAX, or stop with an error; none trains on its own by mistake. A
single process needs neither Horovod nor a launcher.
"""

import contextlib
import faulthandler
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from efficientdet.devices.runtime_environment import launch_convolutions_in_graphs
from program_support.errors import InputError
from program_support.plugins import load_plugin

STALL_SECONDS = 50.0
BY_VARIABLES = "JAX_NUM_PROCESSES"
WRITING_FACTOR = 20.0  # allowed time for writing, as a multiple of a step's
_BATCH_STATISTICS = ("moving_mean", "moving_variance")


@dataclass(frozen=True, kw_only=True)
class World:
    """A single process, whose collective operations return their input; `rank` counts over all machines.

    A context manager: a rank that leaves it by an exception ends the other ranks.

    group_size: number of neighboring ranks that share batch statistics; see `mean_of_group`.
    devices: number of devices of each process over which a batch is sharded; more than one under JAX only.
    groups: number of equal parts of a step's batch that have batch statistics of their own; under JAX only.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    group_size: int = 1
    devices: int = 1
    groups: int = 1

    @property
    def sharing_statistics(self) -> int:
        """The number of processes, or of devices under JAX, that share batch statistics."""
        return self.group_size * self.devices * self.size // self.replicas // self.groups

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_) -> None:
        """Leave the other ranks."""

    @property
    def replicas(self) -> int:
        """The number of ranks with a loss and batch statistics of their own.

        1 under JAX, where a step is one program over the batch of all processes.
        """
        return self.size

    @property
    def is_first(self) -> bool:
        """True for the process that logs and writes files for all."""
        return self.rank == 0

    def sum(self, tensors: Sequence, *, half: bool = False) -> list:
        """Sum each float32 tensor over ranks, in one message; `half`: sent as float16. Works in a graph."""
        del half
        return list(tensors)

    def mean_of_group(self, tensor):
        """Return the mean of a float32 tensor over the ranks of the group.

        Works in a graph and is differentiable: the gradient is that of the summed losses of the ranks.
        """
        return tensor

    def broadcast(self, variables: Sequence) -> None:
        """Copy the values of Keras variables from the first rank to all ranks."""

    def gather(self, value) -> list:
        """Return the picklable values of all ranks, in order of rank, on every rank."""
        return [value]

    def barrier(self) -> None:
        """Wait until every rank has arrived.

        The first rank writes checkpoints, metrics and reports while the others wait, so the deadline is longer than
        that of a step.
        """

    def deadline(self, factor: float = 1.0) -> contextlib.AbstractContextManager:
        """Return a context manager that ends this process if its block takes too long.

        After HOROVOD_STALL_SHUTDOWN_TIME_SECONDS (under JAX EFFICIENTDET_STALL_SECONDS; default 50) times `factor`
        this process prints its stack and exits with status 1, and the launcher ends the others. Horovod and JAX do not
        detect ranks that hang in Python.
        """
        return contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True)
class _HorovodWorld(World):
    """One of several processes connected by Horovod."""

    group: Any = None  # Horovod process set of the group; None: all ranks

    def sum(self, tensors: Sequence, *, half: bool = False) -> list:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        sent = [tf.cast(tensor, tf.float16) for tensor in tensors] if half else list(tensors)
        return [tf.cast(total, tf.float32) for total in hvd.grouped_allreduce(sent, op=hvd.Sum)]

    def mean_of_group(self, tensor):
        import horovod.tensorflow as hvd

        if self.group_size == 1:
            return tensor
        members = {} if self.group is None else {"process_set": self.group}
        return hvd.allreduce(tensor, op=hvd.Sum, **members) / self.group_size

    def broadcast(self, variables: Sequence) -> None:
        import horovod.tensorflow as hvd

        hvd.broadcast_variables([variable.value for variable in variables], root_rank=0)

    def gather(self, value) -> list:
        import horovod.tensorflow as hvd

        return hvd.allgather_object(value)

    def barrier(self) -> None:
        with self.deadline(WRITING_FACTOR):
            self.gather(None)

    def deadline(self, factor: float = 1.0) -> contextlib.AbstractContextManager:
        seconds = float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") or STALL_SECONDS)
        return ended_after(factor * seconds)


@contextlib.contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Print the stacks of this process and end it with status 1 if a block takes longer than `seconds`, 0: never."""
    if seconds > 0:
        faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def join_world(
    environment: Mapping[str, str] | None = None,
    *,
    group_size: int | None = None,
    num_devices: int | None = None,
) -> World:
    """Connect to the other processes of this job, if it was started with several.

    Must be called before any tensor exists: a process uses the GPU of its local rank.

    Raises:
        InputError: the launcher started several processes that cannot connect, or the number of processes, or of
            devices under JAX, is not divisible by `group_size`.
    """
    environment = os.environ if environment is None else environment
    launcher, process_count = launched_by(environment)
    if os.environ.get("KERAS_BACKEND") != "jax":
        if launcher == BY_VARIABLES:
            raise InputError(f"{launcher}={process_count}: expected KERAS_BACKEND=jax")
        group_size = group_size or 1
        _check_group_size(group_size, of=process_count, name="processes")
        return World() if process_count == 1 else _join_horovod(launcher, process_count, group_size=group_size)
    launch_convolutions_in_graphs()
    if process_count > 1:
        join = load_plugin("efficientdet.processes", "jax")
        world = join(launcher, process_count, environment, num_devices=num_devices)
    else:
        from efficientdet.devices.mesh import device_count

        world = World(devices=device_count(num_devices))
    devices = world.devices * world.size
    group_size = group_size or devices
    _check_group_size(group_size, of=devices, name="devices")
    return replace(world, groups=devices // group_size)


def _check_group_size(size: int, *, of: int, name: str) -> None:
    if of % size:
        raise InputError(f"--bn_group={size}: expected 1 or a divisor of the number of {name}, {of}")


def launched_by(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return (launcher, number of processes); ("", 1) for a single process.

    Slurm counts as launcher only for a process of a step (srun): a batch script also has SLURM_NTASKS, but runs alone.
    """
    for launcher, variable in (
        (BY_VARIABLES, "JAX_NUM_PROCESSES"),
        ("horovodrun", "HOROVOD_SIZE"),
        ("mpirun", "OMPI_COMM_WORLD_SIZE"),
        ("mpirun", "PMI_SIZE"),
        ("srun", "SLURM_STEP_NUM_TASKS"),
    ):
        count = environment.get(variable, "")
        if count.isdigit() and int(count) > 1:
            return launcher, int(count)
    return "", 1


def _join_horovod(launcher: str, process_count: int, *, group_size: int) -> World:
    """Connect to the other processes over Horovod; see `join_world`."""
    try:
        import horovod.tensorflow as hvd
    except ImportError as error:
        raise InputError(
            f"{launcher} started {process_count} processes, but Horovod cannot be imported ({error}): run "
            "bash scripts/install_horovod.sh"
        ) from error
    _require_equal_groups(process_count, group_size)
    groups = [
        hvd.ProcessSet(range(first, first + group_size))
        for first in range(0, process_count if 1 < group_size < process_count else 0, group_size)
    ]
    hvd.init(process_sets=groups)
    if hvd.size() != process_count:
        raise InputError(
            f"{launcher} started {process_count} processes, but Horovod sees {hvd.size()}: it was built without "
            "support for this launcher; use horovodrun, or build it where MPI is installed"
        )
    _select_gpu(hvd.local_rank())
    return _HorovodWorld(
        rank=hvd.rank(),
        size=hvd.size(),
        local_rank=hvd.local_rank(),
        local_size=hvd.local_size(),
        group_size=group_size,
        group=groups[hvd.rank() // group_size] if groups else None,
    )


def _require_equal_groups(process_count: int, group_size: int) -> None:
    """Raise InputError if this rank's groups differ from the first rank's: Horovod would abort after 30 seconds.

    Only Gloo's launchers serve values before Horovod is initialized.
    """
    address, port = (os.environ.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    if process_count < 4 or not address or not port:  # fewer form no groups
        return
    from horovod.runner.http.http_client import put_data_into_kvstore, read_data_from_kvstore

    rank, ends = os.environ["HOROVOD_RANK"], time.monotonic() + STALL_SECONDS
    if rank == "0":
        put_data_into_kvstore(address, port, "bn_group", rank, group_size)
        return
    while True:
        try:
            first = read_data_from_kvstore(address, port, "bn_group", "0")
        except RuntimeError:  # not yet there
            if time.monotonic() > ends:
                return
            time.sleep(0.1)
            continue
        if first != group_size:
            raise InputError(
                f"the processes differ in --bn_group (process 0: {first}, process {rank}: {group_size}): expected the "
                "same command in each"
            )
        return


def _select_gpu(local_rank: int) -> None:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus and local_rank >= len(gpus):
        raise InputError(f"process {local_rank} of this machine finds {len(gpus)} GPUs; expected one for each process")
    if gpus:
        tf.config.set_visible_devices(gpus[local_rank], "GPU")


def is_batch_statistic(name: str) -> bool:
    """Return whether a weight of that name is a batch statistic, measured by each rank on its own images."""
    return name.rsplit("/", 1)[-1] in _BATCH_STATISTICS


def average_over_ranks(world: World, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the mean of each float32 array over ranks, bitwise equal on all."""
    return [np.mean(each, axis=0) for each in zip(*world.gather(list(arrays)), strict=True)]
