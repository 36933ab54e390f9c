"""The objects that records hold, as ground truth to evaluate against."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from test_pipeline import NAMES, box, record, written

from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records
from dataset.records.schema import encode_record
from program_support.errors import InputError


def test_ground_truth_is_what_was_written(tmp_path):
    objects = [box(2.25, 3.5, 8, 10.125, 9, area=40.5), box(0, 0, 30, 24, 2, crowd=True)]
    records = written(tmp_path, [record(0, objects), record(1, []), record(2, [box(1, 2, 3, 4)])], shards=2)
    coco = ground_truth_of_records(records, NAMES)
    assert coco["categories"] == [{"id": 2, "name": "cat"}, {"id": 5, "name": "dog"}, {"id": 9, "name": "elk"}]
    assert sorted(image["id"] for image in coco["images"]) == [100, 101, 102]
    assert coco["images"][0] == {"id": 100, "file_name": "0.jpg", "height": 24, "width": 30}
    assert [a["id"] for a in coco["annotations"]] == [1, 2, 3]
    by_image = {key: list(group) for key, group in itertools.groupby(coco["annotations"], lambda a: a["image_id"])}
    first, crowd = by_image[100]
    np.testing.assert_allclose(first["bbox"], [2.25, 3.5, 8, 10.125], atol=1e-5)
    assert (first["category_id"], first["area"], first["iscrowd"]) == (9, 40.5, 0)
    assert (crowd["category_id"], crowd["area"], crowd["iscrowd"]) == (2, 720, 1)
    assert 101 not in by_image


def test_ground_truth_without_areas_takes_the_boxes(tmp_path):
    example = tf.train.Example.FromString(encode_record(record(0, [box(1, 2, 3, 4)])))
    del example.features.feature["image/object/area"]
    path = str(tmp_path / "foreign")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    (annotation,) = ground_truth_of_records(index_records([path]), NAMES)["annotations"]
    assert annotation["area"] == pytest.approx(12, rel=1e-5)


def test_two_images_of_one_id_are_refused(tmp_path):
    twice = written(tmp_path, [record(0, []), record(0, [])])
    with pytest.raises(InputError, match=r"0\.jpg: image id 100 is also that of 0\.jpg"):
        ground_truth_of_records(twice, NAMES)


def test_an_unknown_category_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"8\.jpg: image 108 has category ids \[10\]"):
        ground_truth_of_records(written(tmp_path, [record(8, [box(1, 1, 5, 5, 10)])]), NAMES)
