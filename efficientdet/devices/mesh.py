"""Devices under JAX, of this process or of several: a batch is sharded over them, everything else is replicated.

A mesh has the first `count` devices of this process or, with several `processes`, of each of them. An array over the
devices of several processes can only be used by a program that all of them run.

A compiled program whose batch is sharded computes each sum over the batch over all devices, so that its result is that
of one device with the complete batch, batch norm statistics included.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from program_support.errors import InputError

_AXIS = "batch"
Tree = TypeVar("Tree")  # any nest of arrays


def device_count(limit: int | None) -> int:
    """Return the number of local devices, at most `limit`.

    Raises:
        InputError: there are fewer than `limit`.
    """
    count = jax.local_device_count()
    if limit is not None and limit > count:
        raise InputError(f"--num_devices={limit}: this process has {count} devices")
    return limit or count


def replicated(count: int, processes: int = 1) -> NamedSharding:
    """Return the sharding of an array that each device holds."""
    return NamedSharding(_mesh(count, processes), PartitionSpec())


def sharded(count: int, processes: int = 1) -> NamedSharding:
    """Return the sharding of an array [B, ...] of which each device holds a part, in order of processes."""
    return NamedSharding(_mesh(count, processes), PartitionSpec(_AXIS))


def replicate(arrays: Tree, count: int, processes: int = 1) -> Tree:
    """Copy arrays, equal in all processes, to the devices; those that are there are not copied."""
    arrays = jax.device_put(arrays, replicated(count))
    return arrays if processes == 1 else _held_by(arrays, replicated(count, processes))


def local(arrays: Tree, count: int) -> Tree:
    """Return replicated arrays as arrays of the devices of this process, without copying them."""
    return _held_by(arrays, replicated(count))


def shard_batch(batch: Tree, count: int, processes: int = 1) -> Tree:
    """Distribute arrays [B, ...] in equal parts over the devices of this process, without waiting for the copies.

    With several processes each gives its own part [B, ...] of the batch. 64-bit integers, which a device would
    truncate, stay on the host. B must be divisible by `count`.
    """
    sharding = sharded(count, processes)

    def put(array: Any) -> Any:
        array = np.asarray(array)
        return array if array.dtype.itemsize > 4 else jax.make_array_from_process_local_data(sharding, array)

    return jax.tree.map(put, batch)


def for_each_device(function: Callable, count: int, processes: int = 1) -> Callable:
    """Return a function of arrays [B, ...] that computes its results [B, ...] from each device's part alone.

    For use in a compiled program. A loop over the images of all devices would sum over them in each of its iterations.
    """
    spec = PartitionSpec(_AXIS)
    return jax.shard_map(function, mesh=_mesh(count, processes), in_specs=spec, out_specs=spec, check_vma=False)


def finished(arrays: Tree) -> Tree:
    """Return the results of a program; with Gloo, when it has ended on all devices of this process.

    A device that another one is ahead of would take the messages of the next program for its own.
    """
    return jax.block_until_ready(arrays) if uses_gloo() else arrays


def uses_gloo() -> bool:
    """Return whether devices are connected by Gloo: several processes on CPUs, and their own devices too.

    Gloo does not know which sum a message belongs to. Programs of one process then run on one of its devices, whose
    number does not change their speed, and a training step has no sums in loops (see `for_each_device`), which XLA runs
    at the same time as those outside.
    """
    return jax.process_count() > 1 and jax.default_backend() == "cpu"


def _held_by(arrays: Tree, sharding: NamedSharding) -> Tree:
    """Return replicated arrays with another sharding, whose local devices hold them already."""

    def held(array: jax.Array) -> jax.Array:
        parts = [part.data for part in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(array.shape, sharding, parts)

    return jax.tree.map(held, arrays)


@functools.cache
def _mesh(count: int, processes: int) -> Mesh:
    if processes == 1:
        return Mesh(np.array(jax.local_devices()[:count]), (_AXIS,))
    devices = [[each for each in jax.devices() if each.process_index == number] for number in range(processes)]
    return Mesh(np.array([each for of_process in devices for each in of_process[:count]]), (_AXIS,))
