from itertools import chain, repeat

import keras
import pytest

from efficientdet.devices import device
from efficientdet.devices.device import multiply_adds_per_second


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("mixed_bfloat16", "bfloat16")])
def test_the_best_turn_in_the_type_of_the_policy(monkeypatch, precision, dtype):
    """Turns of 4, 2, 5 and 9 seconds until 20 are over."""
    types, matmul = [], keras.ops.matmul

    def noted(one, other):
        types.append(keras.backend.standardize_dtype(one.dtype))
        return matmul(one, other)

    monkeypatch.setattr(device.ops, "matmul", noted)
    clock = iter(chain(*((0.0, seconds) for seconds in (4.0, 2.0, 5.0, 9.0)), repeat(0.0)))
    monkeypatch.setattr(device.time, "perf_counter", lambda: next(clock))
    assert multiply_adds_per_second(precision, seconds=20.0, side=16) == 16**3 / 2.0
    assert types == [dtype] * 5  # the first one is not timed
