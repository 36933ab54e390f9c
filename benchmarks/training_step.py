"""Measure the time of a training step.

`python benchmarks/training_step.py [--model=efficientdet-d0 --size=512 --batch_size=8 --boxes 8 40 --steps=10]`.

Times the complete step (assignment, losses, gradients, clipping, update, average) on a random batch for each number of
boxes per image, in turn. A batch has as many object slots as the input would produce: all, or on TensorFlow on a CPU
the used ones. KERAS_BACKEND=jax needs no TensorFlow. On an accelerator several steps are timed together, as training
starts the next step before it reads the result of the last.
"""

import argparse
import gzip
import json
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import ops

from efficientdet.devices.device import backend_name, device_name, peak_device_memory, peak_host_memory, trace, versions
from efficientdet.devices.runtime import accelerator_count, skip_graph_rewriting
from efficientdet.devices.runtime_environment import keep_freed_memory
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.optimization.build_step import build_train_step
from efficientdet.optimization.optimizer import WeightAverage, build_optimizer
from model.dense_detector import DenseDetector
from model.detection_model import named_variables
from object_detection.structures import Batch, Objects

CLASSES = 90  # of random objects
KERNELS = "conv|depthwise|pad|reduce|scatter|gemm|transpose|copy|fusion"


def random_batch(size: int, batch_size: int, *, boxes: int, slots: int, mask_size: int = 0) -> Batch:
    """Return noise images with `boxes` boxes per image in the first slots; masks fill their boxes."""
    random = np.random.default_rng(0)
    corners = random.uniform(0, size * 0.7, (batch_size, slots, 2)).astype(np.float32)
    sides = random.uniform(size * 0.02, size * 0.3, (batch_size, slots, 2)).astype(np.float32)
    valid = np.tile(np.arange(slots) < boxes, (batch_size, 1))
    tensor = ops.convert_to_tensor
    return Batch(
        images=tensor(random.integers(0, 256, (batch_size, size, size, 3), np.uint8)),
        sizes=tensor(np.full((batch_size, 2), size, np.int32)),
        objects=Objects.of_boxes(
            boxes=tensor(np.concatenate([corners, corners + sides], axis=-1)),
            classes=tensor(random.integers(0, CLASSES, valid.shape).astype(np.int32)),
            valid=tensor(valid),
            crowd=tensor(np.zeros(valid.shape, bool)),
        )._replace(masks=tensor(np.ones((*valid.shape, mask_size, mask_size), np.uint8))),
        image_ids=tensor(np.arange(batch_size, dtype=np.int32)),
        positions=tensor(np.arange(batch_size)),
        scales=tensor(np.ones((batch_size, 2), np.float32)),
    )


def complete_step(detector: DenseDetector, hparams, *, together: int) -> Callable[[Batch], None]:
    """Run several steps as the training loop does and read the last report."""
    optimizer = build_optimizer(hparams, precision=keras.config.dtype_policy().name)
    optimizer.build(detector.network.trainable_variables)
    decay = hparams.moving_average_decay
    average = WeightAverage(list(named_variables(detector.network).values()), decay=decay) if decay else None
    step = build_train_step(detector, optimizer, average, compiled=accelerator_count() > 0)

    def steps(batch: Batch) -> None:
        for _ in range(together):
            report = step(batch, 0.001)
        assert np.isfinite(float(report["loss"]))

    return steps


def print_kernels(folder: str) -> None:
    """Print a table of the kernels in a trace of JAX: number and milliseconds of each kind."""
    numbers, times = Counter[str](), Counter[str]()
    for path in Path(folder).rglob("*.trace.json.gz"):
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if "hlo_op" in event.get("args", {}):
                [kind] = re.findall(KERNELS, event["name"])[:1] or ["other"]
                numbers[kind] += 1
                times[kind] += event["dur"] / 1000
    print("| kernels | number | ms |\n|---|---|---|")
    for kind, spent in times.most_common():
        print(f"| {kind} | {numbers[kind]} | {spent:.2f} |")


def main() -> None:
    """Print medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="efficientdet-d0")
    parser.add_argument("--classes", type=int, default=CLASSES, help="Number of classes. Default: 90.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--boxes", type=int, nargs="*", default=[8, 40], help="Numbers of boxes per image.")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--precision", default="float32", choices=["float32", "mixed_bfloat16"])
    parser.add_argument("--trace", help="Folder for a profiler's trace, of which JAX's kernels are printed.")
    arguments = parser.parse_args()
    if accelerator_count() == 0:
        keep_freed_memory()
    on_tensorflow = backend_name() == "tensorflow"
    if on_tensorflow:
        skip_graph_rewriting()
    keras.config.set_dtype_policy(arguments.precision)
    keras.utils.set_random_seed(0)
    hparams = hyperparameters_of(arguments.model, {"image_size": arguments.size})
    detector = build_detector(hparams, num_classes=arguments.classes, precision=arguments.precision)
    max_boxes = max(hparams.max_instances_per_image, *arguments.boxes)
    batches = {
        boxes: random_batch(
            arguments.size,
            arguments.batch_size,
            boxes=boxes,
            mask_size=hparams.mask_size,
            slots=max_boxes if accelerator_count() or not on_tensorflow else boxes,
        )
        for boxes in arguments.boxes
    }
    together = 10 if accelerator_count() else 1
    step = complete_step(detector, hparams, together=together)
    steps = {f"complete step, {boxes} boxes": (partial(step, batch), together) for boxes, batch in batches.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(arguments.steps + 1):
        for name, (step, count) in steps.items():
            start = time.perf_counter()
            step()
            spent = time.perf_counter() - start
            if number:
                seconds[name].append(spent / count)
            else:
                print(f"{name:<20} compiled and run {count} times in {spent:.0f} s", flush=True)
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:<20} {arguments.batch_size / median:6.2f} images/s, {median:.3f} s per step, {min(values):.3f} to "
            f"{max(values):.3f}"
        )
    if arguments.trace:
        with trace(arguments.trace):
            step()
        print_kernels(arguments.trace)
    memory = {"": peak_host_memory(), ", of the device": peak_device_memory()}
    print(
        "peak memory         ", ", ".join(f"{value / 2**20:.0f} MiB{place}" for place, value in memory.items() if value)
    )
    print(
        f"{arguments.model}, {device_name()}, {backend_name()}, {arguments.precision}, batch {arguments.batch_size} at "
        f"{arguments.size} px, " + ", ".join(f"{name} {version}" for name, version in versions().items())
    )


if __name__ == "__main__":
    main()
