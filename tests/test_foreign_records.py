"""Records as TensorFlow's Object Detection API and Roboflow write them: no class file, and file names as ids."""

import json

import numpy as np
import pytest
import tensorflow as tf

from dataset.class_names import ClassNames
from dataset.files.image_files import encode_image
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records
from dataset.records.schema import ids_of_texts, parse_record
from efficientdet.configuration.flag_paths import class_names_for
from efficientdet.evaluation.data_set_evaluator import read_evaluator
from efficientdet.operations.examine_data import read_splits
from efficientdet.options.doctor import ExamineOptions
from object_detection.coco.results import CocoResults
from program_support.errors import InputError

NAMES = ClassNames((1, 2), ("red", "blue"))
BOX = (0.25, 0.1, 0.75, 0.6)  # ymin, xmin, ymax, xmax


def feature(*values):
    if isinstance(values[0] if values else b"", bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def record(name, *labels, texts=True):
    """As create_tf_example of the API's tutorials writes it."""
    image = encode_image(np.full((60, 80, 3), 90, np.uint8), "JPEG")
    features = {
        "image/height": feature(60),
        "image/width": feature(80),
        "image/filename": feature(name.encode()),
        "image/source_id": feature(name.encode()),
        "image/encoded": feature(image),
        "image/format": feature(b"jpg"),
        "image/object/class/label": feature(*labels),
        **{
            f"image/object/bbox/{side}": feature(*[value] * len(labels))
            for side, value in zip(("ymin", "xmin", "ymax", "xmax"), BOX, strict=True)
        },
    }
    if texts:
        features["image/object/class/text"] = feature(*(b"red" if label == 1 else b"blue" for label in labels))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for one in records:
            writer.write(one)
    return (str(path),)


def test_classes_are_those_that_the_records_name(tmp_path):
    train = write(tmp_path / "train.record", record("a.jpg", 2, 1), record("b.jpg"))
    val = write(tmp_path / "val.record", record("c.jpg", 2))
    nothing = write(tmp_path / "nothing.record", record("d.jpg"))
    assert class_names_for(train, json_file=None) == NAMES
    assert class_names_for(val, json_file=None) == ClassNames((2,), ("blue",))
    assert class_names_for(val, json_file=None, other_records=train) == NAMES
    assert class_names_for(val, json_file=None, of_checkpoint=NAMES) == NAMES
    assert class_names_for(val, json_file=None, of_checkpoint=ClassNames((2, 5), ("red", "blue"))) == ClassNames(
        (2, 3), ("blue", "red")
    )
    assert class_names_for(nothing, json_file=None, of_checkpoint=NAMES) == NAMES
    with pytest.raises(InputError, match=r"nothing\.record: names no classes; expected nothing\.classes\.json"):
        class_names_for(nothing, json_file=None)
    with pytest.raises(InputError, match=r"image/object/class/text\)$"):
        class_names_for(nothing, json_file=None, json_flag=None)
    other = write(tmp_path / "other.record", record("e.jpg", 7), record("f.jpg", 1).replace(b"red", b"cat"))
    with pytest.raises(InputError, match=r"class 1 is named \w+ in one record and \w+ in another"):
        class_names_for(train, json_file=None, other_records=other)


def test_a_label_map_beside_the_records_names_the_classes(tmp_path):
    paths = write(tmp_path / "train" / "things.tfrecord", record("a.jpg", 2, texts=False))
    for place in (tmp_path, tmp_path / "train"):
        label_map = place / "things_label_map.pbtxt"
        label_map.write_text('item {\n  name: "red",\n  id: 1\n}\nitem { id: 2 name: "blue" }\n')
        assert class_names_for(paths, json_file=None) == NAMES
        label_map.unlink()


def test_the_data_check_reads_them(tmp_path):
    write(tmp_path / "train.record", record("a.jpg", 2, 1), record("b.jpg"))
    write(tmp_path / "val.record", record("c.jpg", 2))
    splits = read_splits(ExamineOptions(records=f"{tmp_path}/train*", val_records=f"{tmp_path}/val*"))
    assert [images.class_names for images in splits.values()] == [NAMES, NAMES]
    assert splits["validation"].classes.tolist() == [1]


def test_a_json_is_matched_by_file_name(tmp_path):
    paths = write(tmp_path / "val.record", record("a.jpg", 2, 1), record("b.jpg", 1))
    content = {
        "images": [
            {"id": 5, "file_name": "val2017/b.jpg", "height": 60, "width": 80},
            {"id": 1, "file_name": "a.jpg", "height": 60, "width": 80},
            {"id": 2, "file_name": "not_in_the_records.jpg", "height": 60, "width": 80},
        ],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 9, "bbox": [8, 15, 40, 30]},
            {"id": 2, "image_id": 1, "category_id": 4, "bbox": [8, 15, 40, 30]},
            {"id": 3, "image_id": 5, "category_id": 4, "bbox": [8, 15, 40, 30]},
            {"id": 4, "image_id": 2, "category_id": 4, "bbox": [8, 15, 40, 30]},
        ],
        "categories": [{"id": 4, "name": "red"}, {"id": 9, "name": "blue"}],
    }
    (tmp_path / "val.json").write_text(json.dumps(content))
    index, results = index_records(paths), CocoResults()
    for image, labels in zip(ground_truth_of_records(index, NAMES)["images"], ((2, 1), (1,)), strict=True):
        results.add(
            np.array([image["id"]]),
            np.float32([[[15, 8, 45, 48]] * len(labels)]),
            scores=np.ones((1, len(labels)), np.float32),
            category_ids=np.array([labels]),
            valid=np.ones((1, len(labels)), bool),
        )
    measures = read_evaluator(index, NAMES, json_file=str(tmp_path / "val.json")).evaluate(results.rows())
    assert (measures.numbers["AP"], measures.images) == (pytest.approx(1.0), 2)


def test_ids_of_texts_are_those_of_parsed_records():
    assert ids_of_texts([b"a.jpg"]) == [int(parse_record(record("a.jpg", 1))["image_id"])]


def test_names_beside_records_of_another_conversion_are_refused(tmp_path):
    """A copied class file, and the records of a second day that were copied without theirs."""
    day = write(tmp_path / "first" / "train.record", record("a.jpg"), record("b.jpg", 2, 1))
    other = write(tmp_path / "second" / "train.record", record("c.jpg", 1).replace(b"red", b"cat"))
    NAMES.write(tmp_path / "first" / "train.classes.json")
    assert class_names_for(day, json_file=None) == NAMES
    with pytest.raises(InputError, match=r"second/train\.record: class 1 is cat in its records, and red in the file"):
        class_names_for(day + other, json_file=None)
    ClassNames((1, 2), ("blue", "red")).write(tmp_path / "first" / "train.classes.json")
    with pytest.raises(
        InputError, match=r"first/train\.record: class .* expected .*train.classes.json of the same conv"
    ):
        class_names_for(day, json_file=None)
