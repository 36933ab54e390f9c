"""Measure the time of anchor assignment per image.

    taskset -c 0 python benchmarks/assignment.py [--slots 8 24 48 100]

`assign_anchors` and the dense implementation of the tests (IoU of every anchor with every object) take turns in one
process. Boxes have 4 to 400 pixels at 512 x 512; `--filled` is the share of slots with an object. The labels of both
must be equal. With KERAS_BACKEND=jax both are compiled.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import numpy as np
from keras import ops
from oracles import dense_assignment

from efficientdet.devices.device import backend_name, device_name
from object_detection.assignment.anchor_assignment import assign_anchors
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid
from object_detection.structures import Objects, Targets

SIZE, CLASSES = 512, 90


def random_objects(batch_size: int, slots: int, *, filled: float) -> Objects:
    """Return boxes at uniform positions with log-uniform sides, clipped to the image."""
    random = np.random.default_rng(0)
    centers = random.uniform(0, SIZE, (batch_size, slots, 2))
    sides = np.exp(random.uniform(np.log(4), np.log(400), (batch_size, slots, 2)))
    boxes = np.clip(np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1), 0, SIZE)
    return Objects.of_boxes(
        *(
            ops.convert_to_tensor(values)
            for values in (
                boxes.astype(np.float32),
                random.integers(0, CLASSES, (batch_size, slots)).astype(np.int32),
                np.broadcast_to(np.arange(slots) < filled * slots, (batch_size, slots)),
                np.zeros((batch_size, slots), bool),
            )
        )
    )


def program(function: Callable, *, compiled: bool) -> Callable:
    """Return the function traced once; under JAX it is always compiled."""
    if backend_name() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=compiled, autograph=False)


def seconds_of(implementations: dict[str, Callable], objects: Objects, *, runs: int) -> dict[str, float]:
    """Return the shortest run of each implementation. Raises AssertionError if their labels differ."""
    found: dict[str, Targets] = {name: run(objects) for name, run in implementations.items()}
    for targets in found.values():
        for field in ("positive", "classes"):
            np.testing.assert_array_equal(getattr(targets, field), getattr(found["dense"], field))
    seconds: dict[str, list[float]] = {name: [] for name in implementations}
    for _ in range(runs):
        for name, run in implementations.items():
            start = time.perf_counter()
            np.asarray(run(objects).positive)
            seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


def main() -> None:
    """Print a line for each number of slots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[8, 24, 48, 100])
    parser.add_argument("--filled", type=float, default=1.0)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    grid = anchor_grid(AnchorConfig(), (SIZE, SIZE))
    assign, dense = partial(assign_anchors, grid=grid), partial(dense_assignment, anchor_boxes=grid.boxes)
    implementations = {"ours": program(assign, compiled=False), "dense": program(dense, compiled=False)}
    if backend_name() == "tensorflow":
        implementations["ours by XLA"] = program(assign, compiled=True)
    print(f"{device_name()}, {backend_name()}, batch {arguments.batch_size}, {len(grid)} anchors, ms per image")
    for slots in arguments.slots:
        objects = random_objects(arguments.batch_size, slots, filled=arguments.filled)
        seconds = seconds_of(implementations, objects, runs=arguments.runs)
        shown = ", ".join(f"{name} {1e3 * value / arguments.batch_size:.2f}" for name, value in seconds.items())
        print(f"{slots:4d} slots: {shown}; ours in {seconds['ours'] / seconds['dense']:.3f} of the time")


if __name__ == "__main__":
    main()
