import numpy as np
import pytest
from keras import ops

from object_detection.stateless_random import uniform_draws


def by_hand(seed, position, count):
    """In Python's integers, cut to 32 bits."""

    def mixed(value):
        value = (value ^ (value >> 16)) * 0x7FEB352D % 2**32
        value = (value ^ (value >> 15)) * 0x846CA68B % 2**32
        return value ^ (value >> 16)

    start = (mixed(seed * 0x3C6EF372 % 2**32) + position * 0x1B56C4E9) % 2**32
    return [(mixed((mixed(start) + number * 0x2545F491) % 2**32) >> 8) / 2**24 for number in range(count)]


def draws(seeds, count):
    return np.asarray(uniform_draws(ops.convert_to_tensor(np.int32(seeds)), count))


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**31 - 1])
def test_against_python(seed):
    positions = [0, 1, 7, 118_286, 2**31 - 1]
    found = draws([[seed, position] for position in positions], 9)
    np.testing.assert_array_equal(found, np.float32([by_hand(seed, position, 9) for position in positions]))


def test_uniform_and_of_one_another_unknowing():
    """1,000,000 draws: mean, spread, each of 64 bins, and no two rows or columns alike."""
    found = draws([[seed, position] for seed in range(4) for position in range(500)], 500)
    assert abs(found.mean() - 0.5) < 1e-3
    assert abs(found.std() - np.sqrt(1 / 12)) < 1e-3
    counts = np.histogram(found, bins=64, range=(0, 1))[0]
    assert abs(counts / counts.mean() - 1).max() < 0.05
    assert 0 <= found.min() < found.max() < 1
    correlations = np.corrcoef(found[:300])[np.triu_indices(300, 1)]
    assert abs(correlations).max() < 6 / np.sqrt(500)
    correlations = np.corrcoef(found.T[:300])[np.triu_indices(300, 1)]
    assert abs(correlations).max() < 6 / np.sqrt(2000)
