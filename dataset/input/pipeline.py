"""Records in, batches out: training in an order that is a function of (seed, position), evaluation each image once.

Training counts positions through all epochs: global step t covers positions t G .. t G + G - 1 of the stream, where G
is the number of images of all ranks together; position p is image p mod n of the permutation of epoch p div n (n
records). So within an epoch no record is left out or comes twice, no batch is short, ranks never overlap, two ranks see
what one with twice the batch would, and a run may start at any step. Augmentation is seeded by (seed, position).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import tensorflow as tf

from dataset.class_names import ClassNames
from dataset.input import transforms
from dataset.input.decoded_cache import DecodedCache
from dataset.input.record_batches import RecordBatches, Rows
from dataset.records.record_index import RecordIndex, RecordReader
from dataset.records.schema import parse_record
from object_detection.errors import InputError
from object_detection.structures import Batch, Objects, Tensor

_READ_GROUP = 16  # records per call into Python, which holds the interpreter lock between reads
_READS_IN_FLIGHT = 2
_SLOT_STEP = 8  # slots come in multiples of this, so that a traced step meets few different shapes


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """How records become batches."""

    image_size: tuple[int, int]  # H, W of the network input
    batch_size: int  # images of one rank
    category_ids: tuple[int, ...]  # ascending; class k is the data set's category_ids[k]
    max_instances_per_image: int = 100  # M
    seed: int = 0
    jitter_min: float = 0.1
    jitter_max: float = 2.0
    flip_probability: float = 0.5
    pad_to_batch_maximum: bool = False  # fewer slots where the batch needs fewer; XLA wants one fixed shape instead
    use_fake_data: bool = False  # one real batch for ever: what a step costs without its input
    num_threads: int = 0  # 0: TensorFlow's own pool

    def __post_init__(self):
        for name in ("batch_size", "max_instances_per_image"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; wanted at least 1")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise InputError(f"image_size is {self.image_size}; wanted height and width, at least 1")
        if not 0 < self.jitter_min <= self.jitter_max:
            raise InputError(f"scale jitter is {self.jitter_min} to {self.jitter_max}; wanted 0 < min <= max")
        if not 0 <= self.flip_probability <= 1:
            raise InputError(f"flip_probability is {self.flip_probability}; wanted 0 to 1")
        if self.seed < 0 or self.num_threads < 0:
            raise InputError(f"seed is {self.seed}, num_threads is {self.num_threads}; wanted 0 or more")
        if not self.category_ids or list(self.category_ids) != sorted(set(self.category_ids)):
            raise InputError(f"category_ids are {self.category_ids}; wanted at least one, ascending and distinct")


def steps_per_epoch(num_examples_per_epoch: int, config: InputConfig, *, world_size: int = 1) -> int:
    """Global steps that cover as many images; the last one runs on into the next epoch."""
    return -(-num_examples_per_epoch // (config.batch_size * world_size))


def training_dataset(
    index: RecordIndex, config: InputConfig, *, first_position: int = 0, rank: int = 0, world_size: int = 1,
    cache: DecodedCache | None = None,
) -> RecordBatches:
    """Endless batches (`Batch`) of one rank from a position of the stream on; nothing that came before is read.

    Iterating raises InputError, in one line with file, offset and image, for a record that cannot be used (a category id
    that is not in the configuration, an undecodable image) and for a file that has vanished or shrunk. More than M boxes:
    the largest stay. A cache belongs to one index.
    """
    reader, order = RecordReader(index), _Order(len(index), config.seed)

    def rows(samples: np.ndarray) -> Rows:
        step, row = np.divmod(samples, config.batch_size)
        positions = first_position + (step * world_size + rank) * config.batch_size + row
        return Rows(order.records(positions), positions)

    def read(sample: np.ndarray) -> tuple[np.ndarray, ...]:
        numbers, positions = rows(np.arange(sample, sample + _READ_GROUP))
        return np.array(reader.read(numbers), dtype=object), positions, numbers

    def read_group(sample: Tensor) -> tuple[Tensor, ...]:
        group = tf.numpy_function(read, [sample], (tf.string, tf.int64, tf.int64), stateful=False)
        return tuple(tf.ensure_shape(values, [_READ_GROUP]) for values in group)

    groups = tf.data.Dataset.range(0, np.iinfo(np.int64).max - _READ_GROUP, _READ_GROUP)
    examples = (
        groups.map(read_group, num_parallel_calls=_READS_IN_FLIGHT)
        .unbatch()
        .map(_training_example(config, cache), num_parallel_calls=tf.data.AUTOTUNE)
    )
    batches = examples.batch(config.batch_size, drop_remainder=True)
    if config.pad_to_batch_maximum:
        batches = batches.map(_without_empty_slots)
    if config.use_fake_data:
        batches = batches.take(1).cache().repeat()
    return RecordBatches(
        batches.with_options(_options(config)).prefetch(tf.data.AUTOTUNE), reader,
        rows_of=lambda batch: rows(np.arange(batch * config.batch_size, (batch + 1) * config.batch_size)),
        example=_training_example(config), category_ids=config.category_ids)


def evaluation_dataset(
    index: RecordIndex, config: InputConfig, *, rank: int = 0, world_size: int = 1, samples: int = 0
) -> RecordBatches:
    """(`Batch`, row_valid [B] bool) of every `world_size`-th of the first `samples` records (0: all), each once.

    The last batch is filled up with black images, False in row_valid. Objects are those of the record, in pixels of the
    letterboxed image. Errors as of `training_dataset`.
    """
    reader, example = RecordReader(index), _evaluation_example(config)
    count = min(samples or len(index), len(index))

    def read(number: np.ndarray) -> bytes:
        return reader.read([number])[0]

    def read_one(number: Tensor) -> tuple[Tensor, Tensor]:
        return tf.ensure_shape(tf.numpy_function(read, [number], tf.string, stateful=False), []), number

    batches = (
        tf.data.Dataset.range(rank, count, world_size)
        .map(read_one, num_parallel_calls=_READS_IN_FLIGHT)
        .map(example, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(config.batch_size)
        .map(lambda batch: _fill_up(batch, batch_size=config.batch_size))
    )

    def rows(batch: int) -> Rows:
        numbers = np.arange(rank, count, world_size)[batch * config.batch_size :][: config.batch_size]
        return Rows(numbers, numbers)

    return RecordBatches(
        batches.with_options(_options(config)).prefetch(tf.data.AUTOTUNE), reader, rows_of=rows,
        example=example, category_ids=config.category_ids)


def original_images(index: RecordIndex, count: int) -> list[tuple[int, np.ndarray]]:
    """Image id and pixels, uint8 [h, w, 3], of the first records."""
    records = map(parse_record, RecordReader(index).read(np.arange(min(count, len(index)))))
    return [(int(record["image_id"]), transforms.decode_image(record["encoded"]).numpy()) for record in records]


def ground_truth_of_records(index: RecordIndex, class_names: ClassNames) -> dict:
    """What the records hold as COCO's dictionary (images, annotations, categories), boxes in original pixels.

    No JPEG is decoded. Raises InputError for an id that two images share and for an unknown category id.
    """
    reader, known = RecordReader(index), set(class_names.category_ids)
    records = tf.data.Dataset.range(len(index)).map(
        lambda number: tf.ensure_shape(
            tf.numpy_function(lambda n: reader.read([n])[0], [number], tf.string, stateful=False), [])
    ).map(_annotations_of, num_parallel_calls=tf.data.AUTOTUNE)
    files: dict[int, str] = {}
    images, annotations = [], []
    for tensors in RecordBatches(
            records.prefetch(tf.data.AUTOTUNE), reader, rows_of=lambda number: Rows(np.array([number]), np.array([number])),
            example=lambda serialized, _: _annotations_of(serialized)):
        record = {name: values.numpy() for name, values in tensors.items()}
        image = _image_entry(record)
        if image["id"] in files:
            raise InputError(f"{image['file_name']}: image id {image['id']} is also that of {files[image['id']]}")
        files[image["id"]] = image["file_name"]
        unknown = sorted(set(record["category_ids"].tolist()) - known)
        if unknown:
            raise InputError(f"{image['file_name']}: image {image['id']} has category ids {unknown}; "
                             f"the categories are {sorted(known)}")
        images.append(image)
        annotations += _annotation_entries(record, image, first_id=len(annotations) + 1)
    return {"images": images, "annotations": annotations, "categories": class_names.to_categories()}


class _Order:
    """Which record stands at which position of the endless stream."""

    def __init__(self, count: int, seed: int):
        self._count = count
        # Threads of one pipeline are at most one epoch apart, short of data sets smaller than what is prefetched.
        self._permutation = lru_cache(maxsize=4)(
            lambda epoch: np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(count))

    def records(self, positions: np.ndarray) -> np.ndarray:
        """Record numbers, same shape as the positions."""
        epochs, places = np.divmod(positions, self._count)
        numbers = np.empty_like(positions)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            numbers[inside] = self._permutation(int(epoch))[places[inside]]
        return numbers


def _training_example(config: InputConfig, cache: DecodedCache | None = None) -> Callable[..., Batch]:
    def example(serialized: Tensor, position: Tensor, number: Tensor | None = None) -> Batch:
        record = parse_record(serialized)
        source_size = transforms.image_size(record["encoded"])
        crop = transforms.draw_crop(
            source_size,
            size=config.image_size,
            jitter=(config.jitter_min, config.jitter_max),
            flip_probability=config.flip_probability,
            seed=tf.stack([tf.constant(config.seed, tf.int64), position]),
        )
        boxes, kept = transforms.crop_boxes(record["boxes"], crop, source_size=source_size)
        return Batch(
            images=transforms.crop_image(
                record["encoded"], crop, size=config.image_size,
                window=transforms.decode_window if cache is None else partial(cache.window, number)),
            sizes=crop.size,
            objects=_objects(record, boxes, kept, config=config),
            image_ids=record["image_id"],
            positions=position,
            scales=tf.cast(crop.window, tf.float32) / tf.cast(crop.size, tf.float32),
        )

    return example


def _evaluation_example(config: InputConfig) -> Callable[[Tensor, Tensor], Batch]:
    def example(serialized: Tensor, number: Tensor) -> Batch:
        record = parse_record(serialized)
        image = transforms.decode_image(record["encoded"])
        boxed, size, scale = transforms.letterbox(image, config.image_size)
        input_px_per_image = tf.cast(tf.shape(image)[:2], tf.float32) / scale
        boxes = record["boxes"] * tf.tile(input_px_per_image, [2])
        kept = tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=-1)
        objects = _objects(record, boxes, kept, config=config)
        return Batch(images=boxed, sizes=size, objects=objects, image_ids=record["image_id"], positions=number,
                     scales=scale)

    return example


def _objects(record: dict[str, Tensor], boxes: Tensor, kept: Tensor, *, config: InputConfig) -> Objects:
    """The objects of one image in M slots, in the order of the record; more than M: the largest."""
    classes = _classes_of(record, config.category_ids)
    boxes, classes, crowd = (tf.boolean_mask(values, kept) for values in (boxes, classes, record["crowd"]))
    slots = config.max_instances_per_image
    areas = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    largest = tf.sort(tf.math.top_k(areas, tf.minimum(slots, tf.size(areas))).indices)
    boxes, classes, crowd = (tf.gather(values, largest) for values in (boxes, classes, crowd))
    empty = [0, slots - tf.size(largest)]

    def in_slots(values: Tensor) -> Tensor:
        padded = tf.pad(values, [empty] + [[0, 0]] * (values.shape.rank - 1))
        return tf.ensure_shape(padded, [slots, *values.shape[1:]])

    valid = tf.ones_like(classes, tf.bool)
    return Objects(boxes=in_slots(boxes), classes=in_slots(classes), valid=in_slots(valid), crowd=in_slots(crowd))


def _classes_of(record: dict[str, Tensor], category_ids: tuple[int, ...]) -> Tensor:
    """Category ids -> classes 0 .. K-1, [N] int32."""
    ids, known = record["category_ids"], tf.constant(category_ids, tf.int64)
    classes = tf.minimum(tf.searchsorted(known, ids), len(category_ids) - 1)
    tf.debugging.Assert(
        tf.reduce_all(tf.gather(known, classes) == ids),
        ["unknown category id: file", record["file_name"], "has", ids, "; the categories are", known],
        summarize=100,
    )
    return classes


def _without_empty_slots(batch: Batch) -> Batch:
    """Cut the slots that no image of the batch uses, down to a multiple of _SLOT_STEP."""
    most = tf.reduce_max(tf.reduce_sum(tf.cast(batch.objects.valid, tf.int32), axis=-1))
    slots = tf.maximum(-(-most // _SLOT_STEP), 1) * _SLOT_STEP
    return batch._replace(objects=Objects(*(values[:, :slots] for values in batch.objects)))


def _fill_up(batch: Batch, *, batch_size: int) -> tuple[Batch, Tensor]:
    """Empty rows up to the batch size, and which rows are images: [B] bool."""
    count = tf.shape(batch.images)[0]

    def filled(values: Tensor) -> Tensor:
        padded = tf.pad(values, [[0, batch_size - count]] + [[0, 0]] * (values.shape.rank - 1))
        return tf.ensure_shape(padded, [batch_size, *values.shape[1:]])

    return tf.nest.map_structure(filled, batch), tf.range(batch_size) < count


def _annotations_of(serialized: Tensor) -> dict[str, Tensor]:
    record = parse_record(serialized)
    return {"size": transforms.image_size(record.pop("encoded")), **record}


def _image_entry(record: dict[str, np.ndarray]) -> dict:
    height, width = record["size"].tolist()
    file_name = record["file_name"].decode("utf-8", "replace")
    return {"id": int(record["image_id"]), "file_name": file_name, "height": height, "width": width}


def _annotation_entries(record: dict[str, np.ndarray], image: dict, *, first_id: int) -> list[dict]:
    sides = np.array([image["height"], image["width"]] * 2, np.float64)
    boxes = record["boxes"].astype(np.float64) * sides  # [N, 4] yxyx pixels
    areas = record["areas"] if len(record["areas"]) == len(boxes) else np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    return [
        {
            "id": first_id + i,
            "image_id": image["id"],
            "category_id": int(record["category_ids"][i]),
            "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
            "area": float(areas[i]),
            "iscrowd": int(record["crowd"][i]),
        }
        for i, (y_min, x_min, y_max, x_max) in enumerate(boxes.tolist())
    ]


def _options(config: InputConfig) -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    if config.num_threads:
        options.threading.private_threadpool_size = config.num_threads
    return options
