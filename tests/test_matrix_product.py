from itertools import chain, repeat

import keras
import pytest

from efficientdet.devices import device
from efficientdet.devices.device import multiply_adds_per_second, separable_multiply_adds_per_second


@pytest.fixture
def repetitions(monkeypatch):
    """Repetitions of 0.4, 0.2, 0.3 and 0.5 seconds until one is over; the types of what they compute."""
    types = []

    def noted(operation):
        def compute(one, *others, **settings):
            types.append(keras.backend.standardize_dtype(one.dtype))
            return operation(one, *others, **settings)

        return compute

    for name in ("matmul", "depthwise_conv"):
        monkeypatch.setattr(device.ops, name, noted(getattr(keras.ops, name)))
    clock = iter(chain(*((0.0, seconds) for seconds in (0.4, 0.2, 0.3, 0.5)), repeat(0.0)))
    monkeypatch.setattr(device.time, "perf_counter", lambda: next(clock))
    return types


@pytest.mark.parametrize(("precision", "dtype"), [("float32", "float32"), ("mixed_bfloat16", "bfloat16")])
def test_the_best_repetition_in_the_type_of_the_policy(repetitions, monkeypatch, precision, dtype):
    monkeypatch.setattr(device, "_SIDE_ON_CPU", 16)
    assert multiply_adds_per_second(precision) == 16**3 / 0.2
    assert repetitions == [dtype] * 5  # the first one is not timed


def test_the_mean_of_a_block_by_hand(repetitions):
    """Four images of 16x16 pixels: 112 channels to 672, a window of 3x3 in each, and back to 112."""
    by_hand = 4 * 256 * (112 * 672 + 9 * 672 + 672 * 112) / 0.35
    assert separable_multiply_adds_per_second("float32") == pytest.approx(by_hand)
    assert repetitions == ["float32"] * 5
