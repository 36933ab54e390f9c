"""Convert a record to an image with its objects, for training or evaluation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import tensorflow as tf

from dataset.input.augmentation import Augmentation, ResizeAndFlip
from dataset.input.copy_paste import CopyPaste, MaskSource, View
from dataset.input.crop import Crop, are_cut, crop_boxes, crop_masks
from dataset.input.record_batches import without_autograph
from dataset.input.resize import ResizeRule
from dataset.input.tiling import Tiling
from dataset.records.schema import decode_image, image_size, parse_record
from object_detection.structures import Batch, Objects, Tensor
from program_support.processor import available_cores


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """Parameters that determine how records become batches."""

    resize: ResizeRule  # the evaluation's
    augmentation: Augmentation | None = None  # training's; None: the evaluation's resizing
    copy_paste: CopyPaste | None = None  # two augmented images become one in training
    tiling: Tiling | None = None  # evaluation is on its tiles, and the augmentation draws tiles; None: complete images
    # Training ignores objects of which a tile shows a smaller share of the area; 0: it learns all parts of objects
    least_visible: float = 0.0
    batch_size: int  # images or tiles per process
    category_ids: tuple[int, ...]  # ascending; class k is the data set's category_ids[k]
    max_instances_per_image: int = 100  # M
    mask_size: int = 0  # S, side of the mask of each object; 0: none are decoded
    train_on_crowds: bool = False  # crowd boxes are used as positives in training
    seed: int = 0
    pad_to_batch_maximum: bool = False  # fewer slots if the batch needs fewer; XLA requires one fixed shape instead
    use_fake_data: bool = False  # repeat one real batch, to measure a step without its input
    num_threads: int = 0  # 0: TensorFlow's own thread pool

    @property
    def image_size(self) -> tuple[int, int]:
        """H, W of the network input."""
        return self.resize.size

    @property
    def parallel_calls(self) -> int:
        """Number of images that are processed at a time: two more than cores, so that finished ones delay no core."""
        return self.num_threads or available_cores() + 2


# Random stream; augmentations use small numbers
_COLORS = 1
_fold_in = tf.random.experimental.stateless_fold_in


def training_example(config: InputConfig) -> Callable[[Tensor, Tensor], Batch]:
    """Return a function (serialized, position) -> a row of a `Batch` for training.

    With copy-paste, serialized is [2]; the second record is empty if not used.
    """
    augmentation = config.augmentation or ResizeAndFlip(config.resize, flip_probability=0.0)
    copy_paste = config.copy_paste

    def load(record: dict[str, Tensor], seed: Tensor) -> View:
        source_size = image_size(record["encoded"])
        if config.train_on_crowds:
            record["crowd"] = tf.zeros_like(record["crowd"])
        crop = augmentation.draw(
            source_size, seed=seed, boxes=tf.boolean_mask(record["boxes"], tf.logical_not(record["crowd"]))
        )
        boxes, is_visible = augmentation.boxes(record["boxes"], crop, source_size=source_size)
        _ignore_cut(record, boxes, crop, source_size=source_size, config=config)
        image = augmentation.image(record["encoded"], crop)
        if augmentation.color_jitter is not None:
            image = augmentation.color_jitter(image, crop.size, _fold_in(seed, _COLORS))
        objects, numbers = _objects(record, boxes, is_visible, crop, source_size=source_size, config=config)
        return View(
            image=image,
            size=crop.size,
            objects=objects,
            scale=tf.cast(crop.window, tf.float32) / tf.cast(crop.size, tf.float32),
            masks=MaskSource(tf.gather(_masks_of(record), numbers), crop, source_size, record["file_name"])
            if copy_paste
            else (),
        )

    @without_autograph
    def example(serialized: Tensor, position: Tensor) -> Batch:
        parse = partial(parse_record, with_masks=config.mask_size > 0 or copy_paste is not None)
        seed = tf.stack([tf.constant(config.seed, tf.int64), position])
        if copy_paste is None:
            record = parse(serialized)
            view = load(record, seed)
        else:
            record = parse(serialized[0])

            def load_one_of(image: int) -> View:
                return load(parse(serialized[image]), _fold_in(seed, image))

            view = tf.cond(
                tf.strings.length(serialized[1]) == 0,
                lambda: load(record, seed)._replace(masks=()),
                lambda: copy_paste.compose(load_one_of, seed),
            )
        return _row(record, position, (view.image, view.size, view.scale), view.objects, config=config)

    return example


def evaluation_example(config: InputConfig) -> Callable[[Tensor, Tensor], Batch]:
    @without_autograph
    def example(serialized: Tensor, number: Tensor) -> Batch:
        record = parse_record(serialized, with_masks=config.mask_size > 0)
        image = decode_image(record["encoded"])
        source_size = tf.shape(image)[:2]
        resized, size, scale = config.resize(image)
        input_px_per_image = tf.cast(source_size, tf.float32) / scale
        boxes = record["boxes"] * tf.tile(input_px_per_image, [2])
        has_area = tf.reduce_all(boxes[:, 2:] > boxes[:, :2], axis=-1)
        objects, _ = _objects(
            record, boxes, has_area, config.resize.whole(source_size), source_size=source_size, config=config
        )
        return _row(record, number, (resized, size, scale), objects, config=config)

    return example


def tiles_of_record(config: InputConfig) -> Callable[[Tensor, Tensor], tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Return a function (serialized, number) -> the record with its decoded image, the number, and the tiles [T, 4]."""
    assert config.tiling is not None
    grid = config.tiling.tiles

    @without_autograph
    def decoded(serialized: Tensor, number: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        record = parse_record(serialized, with_masks=config.mask_size > 0)
        record["image"] = decode_image(record.pop("encoded"))
        tiles = tf.numpy_function(
            lambda height, width: grid((int(height), int(width))),
            tf.unstack(tf.shape(record["image"])[:2]),
            tf.int64,
            stateful=False,
        )
        return record, number, tf.ensure_shape(tiles, [None, 4])

    return decoded


def tile_example(config: InputConfig) -> Callable[..., tuple[Batch, Tensor, Tensor]]:
    """Return a function (record, number, tile [4] int64 yxyx) -> a row of a `Batch`, the tile, and height and width."""
    tiling = config.tiling
    assert tiling is not None

    @without_autograph
    def example(record: dict[str, Tensor], number: Tensor, tile: Tensor) -> tuple[Batch, Tensor, Tensor]:
        record, source_size = dict(record), tf.shape(record["image"])[:2]
        pixels = tf.numpy_function(tiling.pixels, [record["image"], tile], tf.uint8, stateful=False)
        resized, size, scale = config.resize(tf.ensure_shape(pixels, [None, None, 3]))
        crop = Crop(tf.cast(tile[:2], tf.int32), tf.shape(pixels)[:2], size, tf.constant(False))
        boxes, is_visible = crop_boxes(record["boxes"], crop, source_size=source_size)
        _ignore_cut(record, boxes, crop, source_size=source_size, config=config)
        objects, _ = _objects(record, boxes, is_visible, crop, source_size=source_size, config=config)
        return _row(record, number, (resized, size, scale), objects, config=config), tile, source_size

    return example


def _row(
    record: dict[str, Tensor],
    position: Tensor,
    resized: tuple[Tensor, Tensor, Tensor],
    objects: Objects,
    *,
    config: InputConfig,
) -> Batch:
    """Return a row of a `Batch`. position: in the stream, or of the record; resized: image, valid area, scales."""
    images, sizes, scales = resized
    return Batch(
        images=images,
        sizes=sizes,
        objects=_in_slots(objects, config.max_instances_per_image),
        image_ids=record["image_id"],
        positions=position,
        scales=scales,
    )


def _ignore_cut(
    record: dict[str, Tensor], boxes: Tensor, crop: Crop, *, source_size: Tensor, config: InputConfig
) -> None:
    """Mark the objects as crowds of which a tile shows too little: what is seen of them is neither object nor not."""
    if config.least_visible:
        cut = are_cut(record["boxes"], boxes, crop, source_size=source_size, least_visible=config.least_visible)
        record["crowd"] = tf.logical_or(record["crowd"], cut)


def _objects(
    record: dict[str, Tensor], boxes: Tensor, is_used: Tensor, crop: Crop, *, source_size: Tensor, config: InputConfig
) -> tuple[Objects, Tensor]:
    """Return the objects of one image in the order of the record, at most the M largest, and their numbers in it.

    Boxes are in input pixels.

    With masks, an object is dropped if its box is visible in the crop but its mask is not.
    """
    numbers = tf.where(is_used)[:, 0]  # numbers of the used objects
    numbers = tf.gather(numbers, _largest(tf.gather(boxes, numbers), config.max_instances_per_image))
    masks = tf.zeros([tf.size(numbers), 0, 0], tf.uint8)
    if config.mask_size:
        masks, shows = crop_masks(
            tf.gather(_masks_of(record), numbers),
            tf.gather(boxes, numbers),
            crop,
            source_size=source_size,
            side=config.mask_size,
            file_name=record["file_name"],
        )
        numbers, masks = tf.boolean_mask(numbers, shows), tf.boolean_mask(masks, shows)
    boxes, classes, crowd, difficult = (
        tf.gather(values, numbers)
        for values in (boxes, _classes_of(record, config.category_ids), record["crowd"], record["difficult"])
    )
    objects = Objects(
        boxes=boxes,
        classes=classes,
        valid=tf.fill([tf.size(numbers)], True),
        crowd=crowd,
        difficult=difficult,
        masks=masks,
    )
    return objects, numbers


def _largest(boxes: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest boxes in their original order."""
    areas = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], axis=-1)
    return tf.sort(tf.math.top_k(areas, tf.minimum(count, tf.size(areas))).indices)


def _in_slots(objects: Objects, slots: int) -> Objects:
    """Pad n objects to M slots, or keep the M largest."""
    largest = _largest(objects.boxes, slots)

    def in_slots(values: Tensor) -> Tensor:
        padded = tf.pad(
            tf.gather(values, largest), [[0, slots - tf.size(largest)]] + [[0, 0]] * (len(values.shape) - 1)
        )
        return tf.ensure_shape(padded, [slots, *values.shape[1:]])

    return Objects(*map(in_slots, objects))


def _masks_of(record: dict[str, Tensor]) -> Tensor:
    """Return the PNG of each object, [N] string.

    Unless there is one per object, all are empty strings, and decoding the first one raises the error.
    """
    masks, count = record["masks"], tf.shape(record["boxes"])[0]
    return tf.cond(tf.size(masks) == count, lambda: masks, lambda: tf.fill([count], ""))


def _classes_of(record: dict[str, Tensor], category_ids: tuple[int, ...]) -> Tensor:
    """Map category ids to class indices 0 .. K-1, [N] int32."""
    ids, known = record["category_ids"], tf.constant(category_ids, tf.int64)
    classes = tf.minimum(tf.searchsorted(known, ids), len(category_ids) - 1)
    tf.debugging.Assert(
        tf.reduce_all(tf.gather(known, classes) == ids),
        ["unknown category id: file", record["file_name"], "has", ids, "; the categories are", known],
        summarize=100,
    )
    return classes
