"""Random numbers that are a function of a seed and a position: the same in any batch, on any rank and backend."""

from keras import ops

from object_detection.structures import Tensor

_OF_SEED, _OF_POSITION, _OF_NUMBER = 0x3C6EF372, 0x1B56C4E9, 0x2545F491  # odd multipliers, whose products wrap around


def seeds_of(positions: Tensor, *, seed: int) -> Tensor:
    """What `uniform_draws` wants for images at these positions, [B] integers: (seed, position), [B, 2] int32."""
    positions = ops.cast(ops.bitwise_and(positions, 2**31 - 1), "int32")
    return ops.stack([ops.full_like(positions, seed % 2**31), positions], axis=-1)


def uniform_draws(seeds: Tensor, count: int | Tensor) -> Tensor:
    """`count` numbers for each image, uniform in [0, 1). seeds [B, 2] int32 (seed, position) -> [B, count] float32.

    A hash of seed, position and number in 32 bits, mixed as Wellons' lowbias32 does (2018); the upper 24 bits count.
    """
    mixed = ops.expand_dims(_mixed(_mixed(seeds[:, 0] * _OF_SEED) + seeds[:, 1] * _OF_POSITION), 1)
    mixed = _mixed(mixed + ops.arange(count, dtype="int32")[None] * _OF_NUMBER)
    return ops.cast(_shifted(mixed, 8), "float32") / 2.0**24


def _mixed(values: Tensor) -> Tensor:
    """A permutation of the 32-bit integers."""
    values = ops.bitwise_xor(values, _shifted(values, 16)) * 0x7FEB352D
    values = ops.bitwise_xor(values, _shifted(values, 15)) * (0x846CA68B - 2**32)
    return ops.bitwise_xor(values, _shifted(values, 16))


def _shifted(values: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left also where the number is negative."""
    return ops.bitwise_and(ops.bitwise_right_shift(values, ops.full_like(values, bits)), 2 ** (32 - bits) - 1)
