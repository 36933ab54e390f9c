"""Stateless random numbers, a function of seed and position: the same in any batch, on any process and backend."""

from keras import ops

from object_detection.structures import Tensor

_SEED_FACTOR, _POSITION_FACTOR, _NUMBER_FACTOR = 0x3C6EF372, 0x1B56C4E9, 0x2545F491  # odd; products overflow


def seeds_of(positions: Tensor, *, seed: int) -> Tensor:
    """Return the seeds of `uniform_draws`, (seed, position) [B, 2] int32, for images at positions [B], integers."""
    positions = ops.cast(ops.bitwise_and(positions, 2**31 - 1), "int32")
    return ops.stack([ops.full_like(positions, seed % 2**31), positions], axis=-1)


def uniform_draws(seeds: Tensor, count: int | Tensor) -> Tensor:
    """Return `count` numbers per image, uniform in [0, 1). seeds [B, 2] int32 (seed, position) -> [B, count] float32.

    A 32-bit hash of seed, position and number, mixed as by Wellons' lowbias32 (2018); the upper 24 bits are used.
    """
    mixed = ops.expand_dims(_mixed(_mixed(seeds[:, 0] * _SEED_FACTOR) + seeds[:, 1] * _POSITION_FACTOR), 1)
    mixed = _mixed(mixed + ops.arange(count, dtype="int32")[None] * _NUMBER_FACTOR)
    return ops.cast(_shifted(mixed, 8), "float32") / 2.0**24


def _mixed(values: Tensor) -> Tensor:
    """Return a permutation of the 32-bit integers."""
    values = ops.bitwise_xor(values, _shifted(values, 16)) * 0x7FEB352D
    values = ops.bitwise_xor(values, _shifted(values, 15)) * (0x846CA68B - 2**32)
    return ops.bitwise_xor(values, _shifted(values, 16))


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Return a logical right shift: zeros are shifted in even if the number is negative."""
    return ops.bitwise_and(ops.bitwise_right_shift(values, ops.full_like(values, bits)), 2 ** (32 - bits) - 1)
