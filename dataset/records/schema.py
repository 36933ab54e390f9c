"""The TFRecord schema for writing and reading, compatible with the public EfficientDet tools, and its images.

Coordinates in a record are fractions of the image, labels are the data set's own category ids, `image/source_id` is the
image id in decimal.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from object_detection.structures import Tensor


@dataclass(frozen=True, kw_only=True)
class RecordObject:
    """One annotated object of an image, in pixels of that image."""

    box_xywh: tuple[float, float, float, float]
    category_id: int
    category_name: str
    area: float
    is_crowd: bool = False
    is_difficult: bool = False  # VOC's flag: hard to recognize; ignored in evaluation
    mask_png: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """One image with its objects for `encode_record`; sides in pixels, `image_format` jpeg or png."""

    encoded: bytes
    height: int
    width: int
    file_name: str
    image_id: int
    image_format: str = "jpeg"
    objects: list[RecordObject] = field(default_factory=list)
    captions: list[str] = field(default_factory=list)


def _bytes(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(*values: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def encode_record(record: Record) -> bytes:
    """Return the serialized `tf.train.Example` of an image and its objects."""
    objects = record.objects
    features = {
        "image/height": _ints(record.height),
        "image/width": _ints(record.width),
        "image/filename": _bytes(record.file_name.encode()),
        "image/source_id": _bytes(str(record.image_id).encode()),
        "image/key/sha256": _bytes(hashlib.sha256(record.encoded).hexdigest().encode()),
        "image/encoded": _bytes(record.encoded),
        "image/format": _bytes(record.image_format.encode()),
        "image/object/bbox/xmin": _floats(*(o.box_xywh[0] / record.width for o in objects)),
        "image/object/bbox/xmax": _floats(*((o.box_xywh[0] + o.box_xywh[2]) / record.width for o in objects)),
        "image/object/bbox/ymin": _floats(*(o.box_xywh[1] / record.height for o in objects)),
        "image/object/bbox/ymax": _floats(*((o.box_xywh[1] + o.box_xywh[3]) / record.height for o in objects)),
        "image/object/class/text": _bytes(*(o.category_name.encode() for o in objects)),
        "image/object/class/label": _ints(*(o.category_id for o in objects)),
        "image/object/is_crowd": _ints(*(int(o.is_crowd) for o in objects)),
        "image/object/area": _floats(*(o.area for o in objects)),
    }
    if any(o.is_difficult for o in objects):
        features["image/object/difficult"] = _ints(*(int(o.is_difficult) for o in objects))
    if any(o.mask_png is not None for o in objects):
        features["image/object/mask"] = _bytes(*(o.mask_png or b"" for o in objects))
    if record.captions:
        features["image/caption"] = _bytes(*(caption.encode() for caption in record.captions))
    example = tf.train.Example(features=tf.train.Features(feature=features))
    # Otherwise the order of the features would vary between processes.
    return example.SerializeToString(deterministic=True)


_FEATURES = {
    "image/encoded": tf.io.FixedLenFeature((), tf.string),
    "image/source_id": tf.io.FixedLenFeature((), tf.string, ""),
    "image/filename": tf.io.FixedLenFeature((), tf.string, ""),
    "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/xmax": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymin": tf.io.VarLenFeature(tf.float32),
    "image/object/bbox/ymax": tf.io.VarLenFeature(tf.float32),
    "image/object/class/label": tf.io.VarLenFeature(tf.int64),
    "image/object/is_crowd": tf.io.VarLenFeature(tf.int64),
    "image/object/difficult": tf.io.VarLenFeature(tf.int64),
    "image/object/area": tf.io.VarLenFeature(tf.float32),
}


_TEXT_IDS = 2**62  # number of ids that a text is hashed to
_MASKS = {"image/object/mask": tf.io.VarLenFeature(tf.string)}


def ids_of_texts(texts: Sequence[bytes]) -> list[int]:
    """Return the image ids of records whose source_id is text, or of the encoded image if it is empty."""
    return tf.strings.to_hash_bucket_fast(tf.constant(texts), _TEXT_IDS).numpy().tolist()


def parse_record(serialized: tf.Tensor | bytes, *, with_masks: bool = False) -> dict[str, tf.Tensor]:
    """Parse one serialized record to tensors.

    Returns `encoded` (bytes), `image_id` (int64; the number in source_id, or a hash of other text),
    `file_name`, `boxes` [N, 4] float32 yxyx as fractions of the image, `category_ids` [N] int64, `crowd` [N] bool,
    `difficult` [N] bool and `areas` [N] float32 in pixels of the original image (empty if the record has none);
    `with_masks` also `masks`, [N] PNGs of the size of the image, empty if the record has none.
    """
    features = tf.io.parse_single_example(serialized, _FEATURES | _MASKS if with_masks else _FEATURES)
    dense = {key: tf.sparse.to_dense(value) for key, value in features.items() if key.startswith("image/object/")}
    boxes = tf.stack([dense[f"image/object/bbox/{side}"] for side in ("ymin", "xmin", "ymax", "xmax")], axis=-1)

    count = tf.shape(boxes)[0]

    def flags(key: str) -> Tensor:
        is_set = dense[key] > 0
        absent = tf.where(tf.size(is_set) == 0, count, 0)  # padding: a condition would take longer
        return tf.reshape(tf.pad(is_set, [[0, absent]]), [count])

    source_id = features["image/source_id"]
    return {
        "encoded": features["image/encoded"],
        "file_name": features["image/filename"],
        "image_id": tf.cond(
            tf.strings.regex_full_match(source_id, r"[0-9]{1,18}"),
            lambda: tf.strings.to_number(source_id, tf.int64),
            lambda: tf.strings.to_hash_bucket_fast(
                tf.where(source_id == "", features["image/encoded"], source_id), _TEXT_IDS
            ),
        ),
        "boxes": boxes,
        "category_ids": dense["image/object/class/label"],
        "crowd": flags("image/object/is_crowd"),
        "difficult": flags("image/object/difficult"),
        "areas": dense["image/object/area"],
        **({"masks": dense["image/object/mask"]} if with_masks else {}),
    }


def image_size(encoded: Tensor) -> Tensor:
    """Return height and width of an encoded image, [2] int32, without decoding a JPEG's pixels."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded)[:2],
        lambda: tf.shape(decode_image(encoded))[:2],
    )


def decode_image(encoded: Tensor) -> tf.Tensor:
    """Decode a JPEG, PNG, BMP or the first frame of a GIF: [h, w, 3] uint8."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])
