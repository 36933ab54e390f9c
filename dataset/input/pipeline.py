"""Batches from records: training in an order determined by (seed, position), evaluation with each image once.

Training counts positions across all epochs: global step t covers positions t G .. t G + G - 1 of the stream, where G is
the global batch size; position p is image p mod n of the permutation of epoch p div n (n records). Within an epoch each
record appears exactly once, all batches are full, ranks do not overlap, two ranks see the same images as one rank with
twice the batch size, and a run can start at any step. Augmentation is seeded by (seed, position).
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from dataset.input.examples import InputConfig, evaluation_example, tile_example, tiles_of_record, training_example
from dataset.input.record_batches import (
    READ_GROUP,
    Measuring,
    ReadAhead,
    RecordBatches,
    Rows,
    read_records,
    without_autograph,
)
from dataset.records.record_index import RecordIndex, RecordReader
from dataset.records.schema import decode_image, parse_record
from object_detection.structures import Batch, Objects, Tensor

_BATCHES_AHEAD = 4
_DECODED_AHEAD = 2  # large images, of which tiles are evaluated
_FURTHER = 1 << 63  # random stream for further images, separate from the order of each epoch
_SLOT_STEP = 8  # slots are multiples of this, so that a traced step has few different shapes


def training_dataset(
    index: RecordIndex,
    config: InputConfig,
    *,
    first_position: int = 0,
    rank: int = 0,
    world_size: int = 1,
    factors: np.ndarray | None = None,
    measuring: Measuring = nullcontext,
) -> RecordBatches:
    """Return infinite batches (`Batch`) of one rank from a position of the stream on, without reading earlier records.

    Iterating raises InputError, in one line with file, offset and image, for an unusable record (a category id that is
    not in the configuration, an undecodable image) and for a file that was deleted or truncated. The M largest boxes
    are kept.  `factors` [n] say how often an epoch shows each record. `measuring` is that of `ReadAhead`.
    """
    reader, order = RecordReader(index), StreamOrder(len(index), config.seed, factors)

    def rows(samples: np.ndarray) -> Rows:
        step, row = np.divmod(samples, config.batch_size)
        positions = first_position + (step * world_size + rank) * config.batch_size + row
        return Rows(_with_further(order.records(positions), positions, config, count=len(index)), positions)

    @lru_cache(8)  # each group is asked for twice: ahead, and when it is its turn
    def rows_of_group(group: int) -> Rows:
        return rows(np.arange(group * READ_GROUP, (group + 1) * READ_GROUP))

    def numbers_of_group(group: int) -> np.ndarray:
        numbers = rows_of_group(group).numbers
        return numbers[numbers >= 0]

    ahead = ReadAhead(reader, numbers_of_group, measuring=measuring)

    def read(group: np.ndarray) -> tuple[np.ndarray, ...]:
        numbers, positions = rows_of_group(int(group))
        records = np.full(numbers.shape, b"", dtype=object)
        records[numbers >= 0] = ahead.read(int(group))
        return records, positions

    @without_autograph
    def read_group(group: Tensor) -> tuple[Tensor, ...]:
        tensors = tf.numpy_function(read, [group], (tf.string, tf.int64), stateful=False)
        further = [2] if config.copy_paste else []
        shapes = [READ_GROUP, *further], [READ_GROUP]
        return tuple(map(tf.ensure_shape, tensors, shapes))

    examples = (
        tf.data.Dataset.range(np.iinfo(np.int64).max // READ_GROUP)
        .map(read_group)
        .unbatch()
        .map(training_example(config), num_parallel_calls=config.parallel_calls)
    )
    batches = examples.batch(config.batch_size, drop_remainder=True)
    if config.pad_to_batch_maximum:
        batches = batches.map(_without_empty_slots)
    if config.use_fake_data:
        batches = batches.take(1).cache().repeat()
    return RecordBatches(
        batches.with_options(_options(config)).prefetch(_BATCHES_AHEAD),
        reader,
        rows_of=lambda batch: rows(np.arange(batch * config.batch_size, (batch + 1) * config.batch_size)),
        example=training_example(replace(config, copy_paste=None)),
        category_ids=config.category_ids,
    )


def evaluation_dataset(
    index: RecordIndex, config: InputConfig, *, rank: int = 0, world_size: int = 1, samples: int = 0
) -> RecordBatches:
    """Return (`Batch`, row_valid [B] bool) of every `world_size`-th of the first `samples` records (0: all), each once.

    The last batch is padded with black images, False in row_valid. Boxes are in pixels of the resized image. With
    tiles each is a row, those of an image one after another, and two further tensors are returned: the tiles
    [B, 4] int64 yxyx, and the sizes [B, 2] int32 (height, width) of their images. Raises as `training_dataset` does.
    """
    reader, example = RecordReader(index), evaluation_example(config)
    count = min(samples or len(index), len(index))

    numbers = np.arange(rank, count, world_size)
    records = read_records(reader, numbers)
    if config.tiling is None:
        examples = records.map(example, num_parallel_calls=config.parallel_calls)
    else:
        examples = _tiles(records, config)
    batches = examples.batch(config.batch_size).map(partial(_fill_up, batch_size=config.batch_size))

    def rows(batch: int) -> Rows:
        of_batch = numbers[batch * config.batch_size :][: config.batch_size]
        of_batch = of_batch if config.tiling is None else numbers  # it may be any of them
        return Rows(of_batch, of_batch)

    return RecordBatches(
        batches.with_options(_options(config)).prefetch(_BATCHES_AHEAD),
        reader,
        rows_of=rows,
        example=example,
        category_ids=config.category_ids,
        images=len(numbers),
    )


def _tiles(records: tf.data.Dataset, config: InputConfig) -> tf.data.Dataset:
    """Return the tiles of records as `tile_example` does, in order. A decoded image is shared by its tiles."""

    @without_autograph
    def of_image(record: dict[str, Tensor], number: Tensor, tiles: Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(tiles).map(lambda tile: (record, number, tile))

    decoded = records.map(tiles_of_record(config), num_parallel_calls=min(config.parallel_calls, _DECODED_AHEAD))
    return decoded.flat_map(of_image).map(tile_example(config), num_parallel_calls=config.parallel_calls)


class OriginalImage(NamedTuple):
    """The image of a record."""

    image_id: int
    name: str  # its file's, or "image ID" if the record has none
    pixels: np.ndarray  # uint8 [h, w, 3]


def original_images(index: RecordIndex, numbers: Iterable[int]) -> Iterator[OriginalImage]:
    """Yield the images of the records with these numbers, one at a time."""
    reader = RecordReader(index)
    for number in numbers:
        record = parse_record(reader.read([number])[0])
        image_id, name = int(record["image_id"]), record["file_name"].numpy().decode("utf-8", "replace")
        yield OriginalImage(image_id, name or f"image {image_id}", decode_image(record["encoded"]).numpy())


def _with_further(numbers: np.ndarray, positions: np.ndarray, config: InputConfig, *, count: int) -> np.ndarray:
    """Add the further record for copy-paste to each of n: [n, 2], -1 for none; [n] without copy-paste.

    Determined by (seed, position), as the augmentation is.
    """
    if config.copy_paste is None:
        return numbers
    streams = (
        np.random.Philox(key=np.array([config.seed, _FURTHER + position], np.uint64)) for position in positions.tolist()
    )
    further = [config.copy_paste.choose(np.random.Generator(stream), count) for stream in streams]
    return np.column_stack([numbers, further])


@without_autograph
def _without_empty_slots(batch: Batch) -> Batch:
    """Remove the slots that no image of the batch uses, down to a multiple of _SLOT_STEP."""
    most = tf.reduce_max(tf.reduce_sum(tf.cast(batch.objects.valid, tf.int32), axis=-1))
    slots = tf.maximum(-(-most // _SLOT_STEP), 1) * _SLOT_STEP
    return batch._replace(objects=Objects(*(values[:, :slots] for values in batch.objects)))


@without_autograph
def _fill_up(batch: Batch, *places: Tensor, batch_size: int) -> tuple[Any, ...]:
    """Pad a batch, and places of tiles, with empty rows to the batch size; return which rows are images, [B] bool."""
    count = tf.shape(batch.images)[0]

    def filled(values: Tensor) -> Tensor:
        padded = tf.pad(values, [[0, batch_size - count]] + [[0, 0]] * (len(values.shape) - 1))
        return tf.ensure_shape(padded, [batch_size, *values.shape[1:]])

    return tf.nest.map_structure(filled, batch), tf.range(batch_size) < count, *map(filled, places)


def _options(config: InputConfig) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    if config.num_threads:
        options.threading.private_threadpool_size = config.num_threads
    return options


def epoch_length(factors: np.ndarray) -> int:
    """Return the number of images per epoch, which is the same for all epochs."""
    return int(np.floor(factors).sum()) + _drawn(factors)


def repeated(factors: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the image numbers of one epoch, `epoch_length` of them in random order.

    Each appears as often as the integer part of its factor, and once more with the probability of the fractional part.
    The fractional parts are drawn together (systematic sampling), so that the sum is constant.
    """
    counts, rests = np.floor(factors).astype(np.int64), factors % 1.0
    order = random.permutation(len(factors))  # otherwise neighbors would never be drawn together
    ends, more = np.cumsum(rests[order]), _drawn(factors)
    if more:
        ends = np.append(np.minimum(ends[:-1] * (more / ends[-1]), more), more)  # makes the sum an integer
        counts[order] += np.diff(np.floor(ends + random.random()), prepend=0.0).astype(np.int64)
    return random.permutation(np.repeat(np.arange(len(factors)), counts))


def _drawn(factors: np.ndarray) -> int:
    """Return the number of images drawn from the fractional parts; the sum is exact in any order of the images."""
    return math.ceil(math.fsum(factors % 1.0))


class StreamOrder:
    """Maps positions of the infinite stream to records.

    An epoch has each of `count` records once, or according to `factors` [count] (see `repeated`); all epochs have the
    same length, so that a position determines its epoch.
    """

    def __init__(self, count: int, seed: int, factors: np.ndarray | None = None):
        self._length = count if factors is None else epoch_length(factors)

        def permutation(epoch: int) -> np.ndarray:
            random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
            return random.permutation(count) if factors is None else repeated(factors, random)

        # Threads of one pipeline are at most one epoch apart, unless the data set is smaller than the prefetched part.
        self._permutation = lru_cache(maxsize=4)(permutation)

    def records(self, positions: np.ndarray) -> np.ndarray:
        """Return the record numbers at positions [n] of the stream: [n] int64."""
        epochs, places = np.divmod(positions, self._length)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            numbers[inside] = self._permutation(int(epoch))[places[inside]]
        return numbers
