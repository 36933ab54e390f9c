"""Measure the training input in images/s: `python benchmarks/input.py --records='DIR/train-*' [--seconds=5 --runs=3]`.

For some of the cores: `taskset -c 0-3 python ...`.

Two loaders take turns in one process: decoding the same JPEGs, the upper limit of any loader that reads every pixel,
and our input, which yields uint8 images and boxes; the training step normalizes and assigns on its device.

`--pause=0.01 --threads=1,4,16` stands for more cores than this machine has: each image waits 10 ms instead of being
decoded, in so many threads. A thread that works for all images, such as the one that forms batches, limits the input to
the inverse of its CPU time per image.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from dataset.input.augmentation import ScaleJitterCrop
from dataset.input.crop import Crop
from dataset.input.examples import InputConfig
from dataset.input.pipeline import training_dataset
from dataset.records.record_files import expand_glob
from dataset.records.record_index import RecordIndex, index_records
from dataset.records.schema import parse_record
from efficientdet.configuration.flag_paths import class_names_for
from object_detection.structures import Tensor
from program_support.errors import InputError


def decoded(files: list[str]) -> tf.data.Dataset:
    """Return the decoded images."""
    records = tf.data.TFRecordDataset(files).cache().repeat()
    return records.map(
        lambda record: tf.io.decode_jpeg(parse_record(record)["encoded"], channels=3),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(8)


def rate(batches: Iterator, *, images: int, seconds: float) -> float:
    """Return images/s, after one second of warm-up."""
    for limit in (1.0, seconds):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < limit:
            next(batches)
            count += images
    return count / (time.perf_counter() - start)


class Paused(ScaleJitterCrop):
    """The augmentation with a pause instead of decoding and resampling."""

    seconds = 0.0

    def image(self, encoded: Tensor, crop: Crop) -> Tensor:
        """Return black pixels after the pause."""

        def pause(_: np.ndarray) -> np.ndarray:
            time.sleep(self.seconds)
            return np.zeros((*self.size, 3), np.uint8)

        return tf.ensure_shape(tf.numpy_function(pause, [crop.size], tf.uint8, stateful=False), [*self.size, 3])


def cpu_of_threads() -> dict[str, float]:
    """Return the CPU seconds of each thread of this process (proc(5))."""
    stats = {
        path.parent.name: path.read_text().rpartition(")")[2].split() for path in Path("/proc/self/task").glob("*/stat")
    }
    return {thread: (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") for thread, fields in stats.items()}


def print_scaling(index: RecordIndex, config: InputConfig, counts: list[int], *, seconds: float) -> None:
    """Print images/s and CPU time of the paused input by number of threads."""
    for count in counts:
        batches = iter(training_dataset(index, replace(config, num_threads=count)))
        rate(batches, images=config.batch_size, seconds=0.1)  # the first batches wait for all threads
        before, images, begun = cpu_of_threads(), 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            next(batches)
            images += config.batch_size
        reached = images / (time.perf_counter() - begun)
        spent = sorted(1000 * (cpu - before.get(name, 0.0)) / images for name, cpu in cpu_of_threads().items())
        print(
            f"{count:3d} threads: {reached:6.0f} images/s; CPU per image {sum(spent):.2f} ms, of the busiest "
            f"threads beside these {spent[-count - 1]:.3f} and {spent[-count - 2]:.3f} ms",
            flush=True,
        )


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", required=True, help="Glob of TFRecords.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pause", type=float, help="Seconds of each image instead of decoding.")
    parser.add_argument("--threads", default="1,4,16", help="Numbers of threads with --pause.")
    arguments = parser.parse_args()
    try:
        files = expand_glob(arguments.records)
        index, class_names = index_records(files), class_names_for(tuple(files), json_file=None, json_flag=None)
    except InputError as error:
        parser.error(str(error))
    config = InputConfig.letterboxed(
        image_size=(arguments.size, arguments.size),
        batch_size=arguments.batch_size,
        pad_to_batch_maximum=True,
        category_ids=class_names.category_ids,
    )
    if arguments.pause:
        Paused.seconds = arguments.pause
        paused = replace(config, augmentation=Paused(config.image_size))
        print_scaling(index, paused, [*map(int, arguments.threads.split(","))], seconds=arguments.seconds)
        return
    loaders = {
        "decoding only": (lambda: decoded(files), 1),
        "ours, images and boxes": (lambda: training_dataset(index, config), arguments.batch_size),
    }
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for _ in range(arguments.runs):
        for name, (make, images) in loaders.items():
            rates[name].append(rate(iter(make()), images=images, seconds=arguments.seconds))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:<25} {medians[name]:6.0f} images/s, {min(values):.0f} to {max(values):.0f}")
    decoding, ours = medians.values()
    print(f"ours: {ours / decoding:.2f} of decoding")


if __name__ == "__main__":
    main()
