"""Measure the training input in images/s: `python benchmarks/input.py --records='DIR/train-*' [--seconds=5 --runs=3]`.

These take turns in one process: decoding the same JPEGs, the upper limit of any loader that reads every pixel; our
input, which yields uint8 images and boxes (the step normalizes and assigns on its device); our input with both on the
CPU; and a baseline that does the same work as loaders of detectors commonly do: decode the complete image, normalize it
as float32, resize, crop, pad, and assign anchors by the same function as ours.
"""

import argparse
import glob
import os
import statistics
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from dataset.class_names import class_names_of_records
from dataset.input.input_config import InputConfig
from dataset.input.pipeline import training_dataset
from dataset.records.record_index import RecordIndex, index_records
from dataset.records.schema import parse_record
from object_detection.assignment.anchor_assignment import assign_anchors
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid
from object_detection.structures import Batch, Objects, Targets

MEAN, STDDEV = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_OBJECTS = 100


def decoded(files: list[str]) -> tf.data.Dataset:
    """Return the decoded images."""
    records = tf.data.TFRecordDataset(files).cache().repeat()
    return records.map(
        lambda record: tf.io.decode_jpeg(parse_record(record)["encoded"], channels=3),
        num_parallel_calls=tf.data.AUTOTUNE,
    ).prefetch(8)


def baseline(files: list[str], size: int, *, batch_size: int) -> tf.data.Dataset:
    """Return float32 images [B, H, W, 3] and the targets of every anchor."""
    grid = anchor_grid(AnchorConfig(), (size, size))

    def example(record):
        record = parse_record(record)
        image = tf.cast(tf.io.decode_jpeg(record["encoded"], channels=3), tf.float32) / 255.0
        image = (image - MEAN) / STDDEV
        boxes, flip = record["boxes"], tf.random.uniform([]) < 0.5
        image = tf.cond(flip, lambda: tf.image.flip_left_right(image), lambda: image)
        scale = size * tf.random.uniform([], 0.1, 2.0) / tf.cast(tf.reduce_max(tf.shape(image)[:2]), tf.float32)
        scaled = tf.maximum(tf.cast(tf.cast(tf.shape(image)[:2], tf.float32) * scale, tf.int32), 1)
        image = tf.image.resize(image, scaled)
        margin = tf.maximum(scaled - size, 0)
        offset = tf.cast(tf.random.uniform([2]) * tf.cast(margin + 1, tf.float32), tf.int32)
        image = image[offset[0] : offset[0] + size, offset[1] : offset[1] + size]
        image = tf.image.pad_to_bounding_box(image, 0, 0, size, size)
        boxes = boxes * tf.cast(tf.tile(scaled, [2]), tf.float32) - tf.cast(tf.tile(offset, [2]), tf.float32)
        boxes = tf.clip_by_value(boxes, 0.0, float(size))
        boxes = tf.boolean_mask(boxes, tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=-1))[:MAX_OBJECTS]
        valid = tf.range(tf.maximum(tf.shape(boxes)[0], 1)) < tf.shape(boxes)[0]
        boxes = tf.pad(boxes, [[0, tf.size(valid) - tf.shape(boxes)[0]], [0, 0]])
        targets = assign_anchors(
            Objects(
                boxes[None],
                tf.zeros_like(valid, tf.int32)[None],
                valid[None],
                crowd=tf.zeros_like(valid)[None],
                difficult=tf.zeros_like(valid)[None],
                masks=tf.zeros([1, tf.size(valid), 0, 0], tf.uint8),
            ),
            grid,
        )
        return image, *(values[0] for values in targets)

    records = tf.data.TFRecordDataset(files).cache().repeat()
    examples = records.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def finished(index: RecordIndex, config: InputConfig) -> Iterator[tuple[tf.Tensor, Targets]]:
    """Return our batches after normalization and assignment, which a training step otherwise does.

    Images are float32 [B, H, W, 3], 0 in the padding, with the targets of every anchor.
    """
    grid, (height, width) = anchor_grid(AnchorConfig(), config.image_size), config.image_size
    batches = training_dataset(index, config)

    @tf.function(autograph=False, input_signature=[batches.element_spec])
    def finish(batch: Batch) -> tuple[tf.Tensor, Targets]:
        # Rows are flattened to W x 3 values: TensorFlow is slow if the last axis has only 3.
        mean, stddev = (tf.constant(np.tile(np.float32(values) * 255.0, width)) for values in (MEAN, STDDEV))
        rows = tf.range(height)[None, :, None] < batch.sizes[:, :1, None]
        columns = tf.constant(np.repeat(np.arange(width, dtype=np.int32), 3))[None, None] < batch.sizes[:, 1:, None]
        images = (tf.cast(tf.reshape(batch.images, (-1, height, 3 * width)), tf.float32) - mean) / stddev
        images = images * tf.cast(rows, tf.float32) * tf.cast(columns, tf.float32)
        return tf.reshape(images, (-1, height, width, 3)), assign_anchors(batch.objects, grid)

    return map(finish, batches)


def rate(batches: Iterator, *, images: int, seconds: float) -> float:
    """Return images/s, after one second of warm-up."""
    for limit in (1.0, seconds):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < limit:
            next(batches)
            count += images
    return count / (time.perf_counter() - start)


def measure(
    files: list[str], index: RecordIndex, *, size: int, batch_size: int, seconds: float, runs: int
) -> dict[str, list]:
    """Return images/s of each loader per run; they take turns, so that other load affects all of them."""
    config = InputConfig.letterboxed(
        image_size=(size, size),
        batch_size=batch_size,
        pad_to_batch_maximum=True,
        category_ids=class_names_of_records(files).category_ids,
    )
    loaders: dict[str, tuple[Callable, int]] = {
        "decoding only": (lambda: decoded(files), 1),
        "ours, images and boxes": (lambda: training_dataset(index, config), batch_size),
        "ours, normalized and assigned": (lambda: finished(index, config), batch_size),
        "baseline, normalized and assigned": (lambda: baseline(files, size, batch_size=batch_size), batch_size),
    }
    rates: dict[str, list] = {name: [] for name in loaders}
    for _ in range(runs):
        for name, (make, images) in loaders.items():
            rates[name].append(rate(iter(make()), images=images, seconds=seconds))
    return rates


def main() -> None:
    """Print a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", required=True, help="Glob of TFRecords.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    files = sorted(glob.glob(arguments.records))
    if not files:
        parser.error(f"--records={arguments.records}: no such file")
    rates = measure(
        files,
        index_records(files),
        size=arguments.size,
        batch_size=arguments.batch_size,
        seconds=arguments.seconds,
        runs=arguments.runs,
    )
    medians = {name: statistics.median(values) for name, values in rates.items()}
    for name, values in rates.items():
        print(f"{name:<35} {medians[name]:6.0f} images/s, {min(values):.0f} to {max(values):.0f}")
    decoding, boxes, targets, peer = medians.values()
    print(
        f"ours: {boxes / decoding:.2f} of decoding; with normalization and assignment {targets / decoding:.2f} of it "
        f"and {targets / peer:.1f} times the baseline"
    )


if __name__ == "__main__":
    main()
