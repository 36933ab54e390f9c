"""Finds the other processes of a job under JAX: their number, the address of the first, and its GPU."""

import hashlib
import re
import socket
import zlib
from collections.abc import Mapping

from efficientdet.devices.distributed import World
from efficientdet.plugins.jax_processes.rendezvous import Place, meet, rank_on_host
from program_support.errors import InputError

ARRIVAL_SECONDS = 600.0  # all processes must have started by then
_FIRST_PORT, _PORTS = 61440, 4096


def join(launcher: str, count: int, environment: Mapping[str, str], *, num_devices: int | None) -> World:
    """Connect to the other processes that a launcher started; see `join_world`.

    Raises:
        InputError: they cannot be found, or differ in their devices.
    """
    number, address = place_under_jax(environment)
    if number is None or address is None:
        raise InputError(
            f"{launcher} started {count} processes under KERAS_BACKEND=jax: expected JAX_COORDINATOR_ADDRESS=host:port "
            "of the first process, and JAX_NUM_PROCESSES and JAX_PROCESS_ID unless Slurm or Open MPI numbers them"
        )
    place = Place(address, count, number, name=socket.gethostname(), token=_job_token(launcher, environment))
    peers = meet(place, seconds=ARRIVAL_SECONDS)
    from efficientdet.plugins.jax_processes.jax_world import join_processes

    gpus = _own_gpus(environment, *rank_on_host(peers.names, number))
    return join_processes(place, peers, gpus=gpus, num_devices=num_devices)


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
