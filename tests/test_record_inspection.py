import io
import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from text_tables import rows
from tiny_records import altered, example, without_box_keys

from dataset.records.schema import parse_record
from dataset.records.verify import Inspection, inspect_record


def encoded(kind):
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("boxes", [0, 1, 5])
def test_our_own_records_are_in_order_with_and_without_boxes(boxes):
    assert inspect_record(example(7, boxes=boxes), category_ids={1}) == Inspection(name="7.jpg, image 7", boxes=boxes)


@pytest.mark.parametrize(
    ("features", "useless"),
    [
        ({"encoded": None}, "no image"),
        ({"encoded": tf.train.Feature(bytes_list=tf.train.BytesList())}, "no image"),
        ({"encoded": tf.train.Feature()}, "no image"),
        ({"encoded": [b""]}, "no image"),
        ({"encoded": [b"\xff\xd8\xff", b"\xff\xd8\xff"]}, "no image"),
        ({"encoded": [b"hello, world"]}, "an image that cannot be decoded"),
        ({"encoded": [encoded("tiff")]}, "an image that cannot be decoded"),
    ],
)
def test_a_record_without_image_is_useless(features, useless):
    found = inspect_record(altered(7, features))
    assert found.useless.startswith(useless)
    assert (found.name, found.contradiction) == ("7.jpg, image 7", "")


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "bmp", "webp"])
def test_every_image_that_training_decodes_is_in_order(kind):
    assert inspect_record(altered(7, {"encoded": [encoded(kind)]})) == Inspection(name="7.jpg, image 7", boxes=1)


def test_keys_of_boxes_that_are_absent_are_not_an_empty_list():
    assert inspect_record(without_box_keys(7)).useless == "no box keys (image/object/bbox/..)"
    one_key = altered(7, {f"object/bbox/{side}": None for side in ("xmax", "ymin", "ymax")}, boxes=0)
    assert inspect_record(one_key).useless == ""


def test_what_is_no_example_is_useless():
    assert inspect_record(b"garbage").useless == "no tf.train.Example"
    assert inspect_record(b"").useless.startswith("no image")


CONTRADICTIONS = [
    *rows("""
{"object/bbox/xmax": [0.5]} | lists of unequal lengths (2 ymin, 2 xmin, 2 ymax, 1 xmax, 2 label, 2 is_crowd)
{"object/class/label": None} | lists of unequal lengths (2 ymin, 2 xmin, 2 ymax, 2 xmax, 0 label, 2 is_crowd)
{"object/difficult": [0]} | lists of unequal lengths (2 ymin, 2 xmin, 2 ymax, 2 xmax, 2 label, 2 is_crowd, 1 difficult)
{"object/mask": [b"1"]} | lists of unequal lengths (2 ymin, 2 xmin, 2 ymax, 2 xmax, 2 label, 2 is_crowd, 1 mask)
{"object/is_crowd": [0]} | lists of unequal lengths (2 ymin, 2 xmin, 2 ymax, 2 xmax, 2 label, 1 is_crowd)
{"object/bbox/ymax": [1e999, 1.0]} | a box that is not four finite numbers
{"object/class/label": [1, 4]} | unknown category ids [4], the categories are [1, 3]
{"object/bbox/xmin": [1, 2]} | a int64_list in image/object/bbox/xmin, expected a float_list
{"encoded": [1]} | a int64_list in image/encoded, expected a bytes_list
{"filename": [b"a", b"b"]} | 2 values in image/filename, expected one
"""),
    (
        {"object/bbox/xmin": [0.25, math.nan]},
        "a box that is not four finite numbers (ymin, xmin, ymax, xmax: 0.0625, nan, ",
    ),
]


@pytest.mark.parametrize(("features", "contradiction"), CONTRADICTIONS)
def test_a_contradiction_is_told_in_full(features, contradiction):
    found = inspect_record(altered(7, features, boxes=2), category_ids=[3, 1])
    assert found.contradiction.startswith(contradiction)
    assert found.boxes == 0


BOXES = rows("""
0.2 | 0.4 | 0
-0.5 | 0.4 | 0
0.9 | 1.5 | 0
0.4 | 0.4 | 1
0.4 | 0.2 | 1
1.0 | 1.5 | 1
-3.0 | 0.0 | 1
37.0 | 205.0 | 1
""")


@pytest.mark.parametrize(("xmin", "xmax", "outside"), BOXES)
def test_boxes_without_area_inside_the_image_are_counted(xmin, xmax, outside):
    found = inspect_record(altered(7, {"object/bbox/xmin": [0.1, xmin], "object/bbox/xmax": [0.9, xmax]}, boxes=2))
    assert (found.boxes, found.boxes_outside) == (2, outside)


NAMES = rows("""
{"filename": None} | image 7
{"source_id": None} | 7.jpg
{"filename": None, "source_id": None} | no name
""")


@pytest.mark.parametrize(("features", "name"), NAMES)
def test_the_name_is_what_the_record_has(features, name):
    assert inspect_record(altered(7, features)).name == name


def test_what_the_pipeline_cannot_parse_is_found():
    """Whatever key is spoiled how: where TensorFlow refuses, so does the inspection."""
    keys = [key.removeprefix("image/") for key in tf.train.Example.FromString(example(7)).features.feature]
    refused = 0
    for key in keys:
        for values in (None, [], [b"a"], [1], [0.5], [b"a", b"b"], [0.1, 0.2], [1, 0]):
            payload = altered(7, {key: values})
            try:
                parse_record(tf.constant(payload))
            except tf.errors.InvalidArgumentError:
                refused += 1
                found = inspect_record(payload)
                assert found.contradiction or found.useless, (key, values)
    assert refused > 20
