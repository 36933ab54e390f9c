"""Records of 16 x 16 pixels, and ways to spoil them."""

import numpy as np
import tensorflow as tf

from dataset.records.schema import Record, RecordObject, encode_record

HEADER, FOOTER = 12, 4  # bytes around a payload in a TFRecord file
SIDES = ("xmin", "xmax", "ymin", "ymax")


def example(number, *, boxes=1, category_id=1):
    pixels = np.full((16, 16, 3), number % 256, np.uint8)
    objects = [RecordObject(box_xywh=(1, 1, 8, 8), category_id=category_id, category_name="a", area=64.0)] * boxes
    return encode_record(
        Record(
            encoded=tf.io.encode_jpeg(pixels).numpy(),
            height=16,
            width=16,
            file_name=f"{number}.jpg",
            image_id=number,
            objects=objects,
        )
    )


def altered(number, features, *, boxes=1):
    """The record with features (key without "image/") replaced by lists of bytes, ints or floats; None removes one."""
    message = tf.train.Example.FromString(example(number, boxes=boxes))
    for key, values in features.items():
        message.features.feature.pop(f"image/{key}")
        if values is not None:
            message.features.feature[f"image/{key}"].CopyFrom(_feature(values))
    return message.SerializeToString()


def _feature(values):
    if isinstance(values, tf.train.Feature):
        return values
    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def without_box_keys(number):
    return altered(
        number,
        dict.fromkeys(
            [
                *(f"object/bbox/{side}" for side in SIDES),
                "object/class/label",
                "object/class/text",
                "object/is_crowd",
                "object/area",
            ]
        ),
    )


def write(path, payloads):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def starts(payloads):
    """The byte at which each record begins."""
    sizes = [HEADER + len(payload) + FOOTER for payload in payloads]
    return [sum(sizes[:i]) for i in range(len(sizes))]
