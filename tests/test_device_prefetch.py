"""Batches on the device ahead of their turn under JAX, as they are under TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficientdet.devices.device import device_prefetch
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent

_UNDER_JAX = """
import json
import jax
import numpy as np
import tensorflow as tf
from efficientdet.devices.device import device_prefetch
from program_support.errors import InputError
from object_detection.structures import Batch, Objects

drawn = []

def batches(count, error=None):
    drawn.clear()
    for number in range(count):
        drawn.append(number)
        images = tf.fill([2, 4, 4, 3], tf.cast(number, tf.uint8))
        flags = np.zeros((2, 3), bool)
        objects = Objects.of_boxes(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.int32), flags, flags)
        ids = tf.constant([2 ** 40 + number] * 2, tf.int64)
        yield Batch(images, np.int32([[4, 4]] * 2), objects, ids, ids, np.ones((2, 2), np.float32))
    if error:
        raise error

found = {}
ahead = device_prefetch(batches(5))
found["drawn before the first"] = len(drawn)
first = next(ahead)
found["drawn at the first"] = len(drawn)
found["on the device"] = [isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(first)]
found["kind"] = type(first).__name__, type(first.objects).__name__
found["images"] = [int(batch.images[0, 0, 0, 0]) for batch in [first, *ahead]]
found["ids"] = [int(batch.image_ids[1]) - 2 ** 40 for batch in device_prefetch(batches(3))]
found["one by one"] = [len(drawn) for _ in device_prefetch(batches(3), depth=1)]
before_error = []
try:
    for batch in device_prefetch(batches(3, InputError("broken"))):
        before_error.append(int(batch.images[0, 0, 0, 0]))
except InputError as error:
    found["error"] = before_error, str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(with_jax):
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_JAX],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_under_jax_the_next_batch_is_on_the_device_and_image_ids_are_not(found):
    assert (found["drawn before the first"], found["drawn at the first"]) == (0, 2)
    assert found["on the device"] == [True] * 8 + [False, False, True]  # image_ids and positions: int64
    assert found["kind"] == ["Batch", "Objects"]


def test_under_jax_all_come_once_in_their_order(found):
    assert found["images"] == [0, 1, 2, 3, 4]
    assert found["ids"] == [0, 1, 2]
    assert found["one by one"] == [1, 2, 3]


def test_under_jax_an_error_waits_for_its_turn(found):
    assert found["error"] == [[0, 1, 2], "broken"]


def test_under_tensorflow_batches_pass_as_they_are():
    drawn = []

    def batches():
        for number in range(2):
            drawn.append(number)
            yield {"number": number}
        raise InputError("broken")

    ahead = device_prefetch(batches())
    assert (next(ahead), drawn) == ({"number": 0}, [0])
    assert next(ahead) == {"number": 1}
    with pytest.raises(InputError, match="broken"):
        next(ahead)
