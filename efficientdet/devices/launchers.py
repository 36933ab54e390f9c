"""The launchers that start several processes of one training, and how a process joins the others.

Several processes join each other, over Horovod or JAX, or stop with an error; none trains on its own by mistake. A
single process needs neither Horovod nor a launcher.
"""

import hashlib
import os
import re
import socket
import zlib
from collections.abc import Mapping
from dataclasses import replace

from efficientdet.devices.distributed import World, join_horovod
from program_support.errors import InputError

ARRIVAL_SECONDS = 600.0  # all processes under JAX must have started by then
_BY_VARIABLES = "JAX_NUM_PROCESSES"
_FIRST_PORT, _PORTS = 61440, 4096


def join_world(
    environment: Mapping[str, str] | None = None,
    *,
    group_size: int | None = None,
    num_devices: int | None = None,
    shard_state: bool = False,
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
        if launcher == _BY_VARIABLES:
            raise InputError(f"{launcher}={process_count}: expected KERAS_BACKEND=jax")
        group_size = group_size or 1
        _check_group_size(group_size, of=process_count, name="processes")
        return World() if process_count == 1 else join_horovod(launcher, process_count, group_size=group_size)
    if process_count > 1:
        world = _join_jax(launcher, process_count, environment, num_devices=num_devices)
    else:
        from efficientdet.devices.mesh import device_count

        world = World(devices=device_count(num_devices))
    devices = world.devices * world.size
    group_size = group_size or devices
    _check_group_size(group_size, of=devices, name="devices")
    return replace(world, groups=devices // group_size, state_parts=devices if shard_state else 1)


def _check_group_size(size: int, *, of: int, name: str) -> None:
    if of % size:
        raise InputError(f"--bn_group={size}: expected 1 or a divisor of the number of {name}, {of}")


def launched_by(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return (launcher, number of processes); ("", 1) for a single process.

    Slurm counts as launcher only for a process of a step (srun): a batch script also has SLURM_NTASKS, but runs alone.
    """
    for launcher, variable in (
        (_BY_VARIABLES, "JAX_NUM_PROCESSES"),
        ("horovodrun", "HOROVOD_SIZE"),
        ("mpirun", "OMPI_COMM_WORLD_SIZE"),
        ("mpirun", "PMI_SIZE"),
        ("srun", "SLURM_STEP_NUM_TASKS"),
    ):
        count = environment.get(variable, "")
        if count.isdigit() and int(count) > 1:
            return launcher, int(count)
    return "", 1


def require_one_process(asked_by: str) -> None:
    """Raise InputError if a launcher started several processes."""
    launcher, count = launched_by(os.environ)
    if count > 1:
        raise InputError(f"{asked_by}: expected a single process; {launcher} started {count}")


def place_under_jax(environment: Mapping[str, str]) -> tuple[int | None, str | None]:
    """Return the number of this process and host:port of the first one, None for what is unknown.

    JAX_COORDINATOR_ADDRESS takes precedence. Other ports are derived from the job's id; with Slurm they are those of
    JAX's own detection, which would use one GPU of a host with one process.
    """
    given = environment.get("JAX_COORDINATOR_ADDRESS")
    if "JAX_NUM_PROCESSES" in environment:
        return _integer(environment.get("JAX_PROCESS_ID")), given
    if "OMPI_COMM_WORLD_SIZE" in environment:
        port = zlib.crc32(environment.get("PMIX_NAMESPACE", "").encode()) % _PORTS + _FIRST_PORT
        match = re.search(r"tcp://([^,:]+)", environment.get("OMPI_MCA_orte_hnp_uri", ""))  # Open MPI up to version 4
        one_host = environment["OMPI_COMM_WORLD_SIZE"] == environment.get("OMPI_COMM_WORLD_LOCAL_SIZE")
        host = "localhost" if one_host else match and match[1]
        return int(environment["OMPI_COMM_WORLD_RANK"]), given or (f"{host}:{port}" if host else None)
    if "SLURM_STEP_NUM_TASKS" in environment:
        port = int(environment["SLURM_JOB_ID"]) % _PORTS + _FIRST_PORT
        first = re.match(r"([^,\[]+)(?:\[(\w+))?", environment["SLURM_STEP_NODELIST"])
        return int(environment["SLURM_PROCID"]), given or (f"{first[1]}{first[2] or ''}:{port}" if first else None)
    return None, given


def _integer(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _join_jax(launcher: str, count: int, environment: Mapping[str, str], *, num_devices: int | None) -> World:
    number, address = place_under_jax(environment)
    if number is None or address is None:
        raise InputError(
            f"{launcher} started {count} processes under KERAS_BACKEND=jax: expected JAX_COORDINATOR_ADDRESS=host:port "
            "of the first process, and JAX_NUM_PROCESSES and JAX_PROCESS_ID unless Slurm or Open MPI numbers them"
        )
    from efficientdet.devices.rendezvous import Place, meet, rank_on_host  # with asyncio, 20 ms

    place = Place(address, count, number, name=socket.gethostname(), token=_job_token(launcher, environment))
    peers = meet(place, seconds=ARRIVAL_SECONDS)
    from efficientdet.devices.jax_processes import join_processes

    gpus = _own_gpus(environment, *rank_on_host(peers.names, number))
    return join_processes(place, peers, gpus=gpus, num_devices=num_devices)


def _job_token(launcher: str, environment: Mapping[str, str]) -> str:
    """Return what only the processes of this job have in common, so that a process of another job takes no place."""
    names = {"srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"), "mpirun": ("PMIX_NAMESPACE",)}.get(launcher, ())
    values = [environment.get(name, "") for name in ("EFFICIENTDET_JOB_TOKEN", *names)]
    return hashlib.sha256("\0".join(values).encode()).hexdigest()


def _own_gpus(environment: Mapping[str, str], local_rank: int, local_size: int) -> list[int] | None:
    """Return the GPU of this process of several in one host; None for all that it sees, or JAX_LOCAL_DEVICE_IDS."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    bound = visible is not None and len(visible.split(",")) < local_size  # the launcher has chosen devices
    return None if local_size == 1 or bound or environment.get("JAX_LOCAL_DEVICE_IDS") else [local_rank]
