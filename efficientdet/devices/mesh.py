"""The devices of this process under JAX: a batch is sharded over them, everything else is replicated.

A compiled program whose batch is sharded computes each sum over the batch over all devices, so that its result is that
of one device with the complete batch, batch norm statistics included.
"""

import functools
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from program_support.errors import InputError

_AXIS = "batch"
Tree = TypeVar("Tree")  # any nest of arrays


def device_count(limit: int | None) -> int:
    """Return the number of local devices, at most `limit`. Raise InputError if there are fewer than `limit`."""
    count = jax.local_device_count()
    if limit is not None and limit > count:
        raise InputError(f"--num_devices={limit}: this process has {count} devices")
    return limit or count


def replicated(count: int) -> NamedSharding:
    """Return the sharding of an array that each of the first `count` local devices holds."""
    return NamedSharding(_mesh(count), PartitionSpec())


def sharded(count: int) -> NamedSharding:
    """Return the sharding of an array [B, ...] of which each of the first `count` local devices holds a part."""
    return NamedSharding(_mesh(count), PartitionSpec(_AXIS))


def shard_batch(batch: Tree, count: int) -> Tree:
    """Distribute arrays [B, ...] in equal parts over the first `count` local devices, without waiting for the copies.

    64-bit integers, which a device would truncate, stay on the host. B must be divisible by `count`.
    """
    sharding = sharded(count)

    def put(array: Any) -> Any:
        array = np.asarray(array)
        return array if array.dtype.itemsize > 4 else jax.device_put(array, sharding)

    return jax.tree.map(put, batch)


@functools.cache
def _mesh(count: int) -> Mesh:
    return Mesh(np.array(jax.local_devices()[:count]), (_AXIS,))
