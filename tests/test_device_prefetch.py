"""Batches on the device ahead of their turn under JAX, as they are under TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from efficientdet.devices.device import device_prefetch
from efficientdet.run_log.journal import Stopwatch, input_stall
from efficientdet.training import run
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent

_UNDER_JAX = """
import json
import threading
import time
import jax
import numpy as np
import tensorflow as tf
from dataset.class_names import ClassNames
from efficientdet.devices.device import device_prefetch
from efficientdet.evaluation.data_set_evaluator import detect_all
from program_support.errors import InputError
from efficientdet.run_log.journal import Stopwatch
from object_detection.structures import Batch, Detections, Objects

drawn = []

def batches(count, error=None):
    drawn.clear()
    for number in range(count):
        drawn.append(threading.current_thread() is threading.main_thread())
        images = tf.fill([2, 4, 4, 3], tf.cast(number, tf.uint8))
        flags = np.zeros((2, 3), bool)
        objects = Objects.of_boxes(np.zeros((2, 3, 4), np.float32), np.zeros((2, 3), np.int32), flags, flags)
        ids = tf.constant([2 ** 40 + number] * 2, tf.int64)
        yield Batch(images, np.int32([[4, 4]] * 2), objects, ids, ids, np.ones((2, 2), np.float32))
    if error:
        raise error

found = {}
stages = Stopwatch()
ahead = device_prefetch(batches(5), measuring=stages.measuring)
found["drawn before the first"] = len(drawn)
first = next(ahead)
while len(drawn) < 2:
    time.sleep(0.01)
time.sleep(0.1)
found["drawn at the first"] = len(drawn)
found["on the device"] = [isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(first)]
found["stages"] = [*stages.totals()]
found["in the training thread"] = any(drawn)
found["kind"] = type(first).__name__, type(first.objects).__name__
found["images"] = [int(batch.images[0, 0, 0, 0]) for batch in [first, *ahead]]
found["ids"] = [int(batch.image_ids[1]) - 2 ** 40 for batch in device_prefetch(batches(3))]
before_error = []
try:
    for batch in device_prefetch(batches(3, InputError("broken"))):
        before_error.append(int(batch.images[0, 0, 0, 0]))
except InputError as error:
    found["error"] = before_error, str(error)

class EvaluationBatches(list):
    images = 3

def nothing(images, sizes, scales):
    found.setdefault("evaluated on the device", []).append(isinstance(images, jax.Array))
    zeros = np.zeros((2, 1), np.float32)
    return Detections(np.zeros((2, 1, 4), np.float32), zeros, zeros.astype(np.int32), zeros > 1)

valid = np.array([True, False])  # the second row is padding
rows = detect_all(
    nothing, EvaluationBatches((batch, valid) for batch in batches(3)), class_names=ClassNames((1,), ("cell",))
)
found["evaluated"] = [int(number) - 2 ** 40 for number in rows.evaluated_ids]
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
    assert found["stages"] == ["copying"]
    assert not found["in the training thread"]  # which would start no step meanwhile


def test_under_jax_all_come_once_in_their_order(found):
    assert found["images"] == [0, 1, 2, 3, 4]
    assert found["ids"] == [0, 1, 2]


def test_under_jax_an_evaluation_gets_batches_that_are_on_the_device(found):
    assert found["evaluated on the device"] == [True] * 3
    assert found["evaluated"] == [0, 1, 2]


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


@pytest.mark.parametrize(
    ("reading", "copying", "cpu", "expected"),
    [
        (7.0, 1.0, 0.5, "reading"),
        (1.0, 7.0, 9.0, "copying"),
        (1.0, 1.0, 9.0, "decoding"),
        (1.0, 1.0, 3.0, "assembling"),
    ],
)
def test_the_slowest_stage_is_named(monkeypatch, reading, copying, cpu, expected):
    """Steps took 10 s, of which 4 were spent waiting; 4 cores have 16 s in these."""
    monkeypatch.setattr(run, "available_cores", lambda: 4)
    now = [0.0]
    inputs = object.__new__(run.TrainingInputs)
    inputs.stages, inputs.cpu = Stopwatch(lambda: now[0]), Stopwatch(lambda: now[0])
    spent = (inputs.stages, "reading", reading), (inputs.stages, "copying", copying), (inputs.cpu, "input", cpu)
    for watch, name, seconds in spent:
        with watch.measuring(name):
            now[0] += seconds
    assert inputs.bottleneck(waited=4.0, in_steps=10.0) == expected
    assert f"waiting for input 40% of the time: {expected} is the bottleneck; " in input_stall(0.4, expected)
    assert input_stall(0.01, expected) == ""
