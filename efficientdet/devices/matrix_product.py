"""Measurement of the peak arithmetic throughput of the machine with large matrix products."""

import time

import keras
import numpy as np
from keras import ops

from efficientdet.devices.device import wait
from efficientdet.devices.runtime import accelerator_count

_SIDE, _SIDE_ON_CPU = 8192, 1024
_QUEUED = 4  # products that are queued at once, so that an accelerator does not wait for the next
_FEWEST_REPETITIONS = 3


def multiply_adds_per_second(precision: str, *, seconds: float = 1.0, side: int | None = None) -> float:
    """Return the multiply-adds per second of products of square matrices with `side` rows.

    They are computed in the compute dtype of the policy `precision`. The result is the best repetition within
    `seconds`, of at least three; it is an upper bound for the kernels of a network.
    """
    on_device = accelerator_count() > 0
    side, queued = side or (_SIDE if on_device else _SIDE_ON_CPU), _QUEUED if on_device else 1
    noise = np.random.default_rng(0).standard_normal((side, side), np.float32)
    matrix = wait(ops.cast(noise, keras.dtype_policies.DTypePolicy(precision).compute_dtype))
    times: list[float] = []
    wait(ops.matmul(matrix, matrix))  # the first one chooses a kernel
    while len(times) < _FEWEST_REPETITIONS or sum(times) < seconds:
        started = time.perf_counter()
        for _ in range(queued):
            product = ops.matmul(matrix, matrix)
        wait(product)
        times.append(time.perf_counter() - started)
    return queued * side**3 / min(times)
