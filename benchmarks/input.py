"""Measure the training input in images/s: `python benchmarks/input.py --records='DIR/train-*' [--seconds=5 --runs=3]`.

For some of the cores: `taskset -c 0-3 python ...`.

Two loaders take turns in one process: decoding the same JPEGs, the upper limit of any loader that reads every pixel,
and our input, which yields uint8 images and boxes; the training step normalizes and assigns on its device.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

from dataset.input.augmentation import ScaleJitterCrop
from dataset.input.examples import InputConfig
from dataset.input.pipeline import training_dataset
from dataset.input.resize import letterbox
from dataset.records.record_files import expand_glob
from dataset.records.record_index import index_records
from dataset.records.schema import parse_record
from efficientdet.configuration.flag_paths import class_names_for
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


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", required=True, help="Glob of TFRecords.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    try:
        files = expand_glob(arguments.records)
        index, class_names = index_records(files), class_names_for(tuple(files), json_file=None, json_flag=None)
    except InputError as error:
        parser.error(str(error))
    size = (arguments.size, arguments.size)
    config = InputConfig(
        resize=letterbox(size),
        augmentation=ScaleJitterCrop(size),
        batch_size=arguments.batch_size,
        pad_to_batch_maximum=True,
        category_ids=class_names.category_ids,
    )
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
