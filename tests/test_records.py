import hashlib

import numpy as np
import tensorflow as tf

from dataset.records.schema import Record, RecordObject, encode_record, parse_record


def record(**changes):
    return Record(
        **{
            "encoded": b"jpeg",
            "height": 10,
            "width": 20,
            "file_name": "ä/a.jpg",
            "image_id": 2**40 + 1,
            "objects": [
                RecordObject(box_xywh=(2.0, 1.0, 4.0, 5.0), category_id=90, category_name="dög", area=7.5),
                RecordObject(
                    box_xywh=(0.0, 0.0, 20.0, 10.0), category_id=1, category_name="x", area=200.0, is_crowd=True
                ),
            ],
        }
        | changes
    )


def test_schema_is_that_of_the_public_tools():
    features = tf.train.Example.FromString(encode_record(record())).features.feature
    assert features["image/height"].int64_list.value == [10]
    assert features["image/width"].int64_list.value == [20]
    assert features["image/filename"].bytes_list.value == ["ä/a.jpg".encode()]
    assert features["image/source_id"].bytes_list.value == [b"1099511627777"]
    assert features["image/key/sha256"].bytes_list.value == [hashlib.sha256(b"jpeg").hexdigest().encode()]
    assert features["image/encoded"].bytes_list.value == [b"jpeg"]
    assert features["image/format"].bytes_list.value == [b"jpeg"]
    np.testing.assert_allclose(features["image/object/bbox/xmin"].float_list.value, [0.1, 0.0], rtol=1e-6)
    np.testing.assert_allclose(features["image/object/bbox/xmax"].float_list.value, [0.3, 1.0], rtol=1e-6)
    np.testing.assert_allclose(features["image/object/bbox/ymin"].float_list.value, [0.1, 0.0], rtol=1e-6)
    np.testing.assert_allclose(features["image/object/bbox/ymax"].float_list.value, [0.6, 1.0], rtol=1e-6)
    assert features["image/object/class/text"].bytes_list.value == ["dög".encode(), b"x"]
    assert features["image/object/class/label"].int64_list.value == [90, 1]
    assert features["image/object/is_crowd"].int64_list.value == [0, 1]
    assert features["image/object/area"].float_list.value == [7.5, 200.0]
    assert "image/object/mask" not in features
    assert "image/caption" not in features


def test_parse_inverts_encode():
    parsed = parse_record(tf.constant(encode_record(record())))
    assert parsed["image_id"].dtype == tf.int64
    assert int(parsed["image_id"]) == 2**40 + 1
    np.testing.assert_allclose(parsed["boxes"], [[0.1, 0.1, 0.6, 0.3], [0, 0, 1, 1]], rtol=1e-6)
    assert parsed["category_ids"].numpy().tolist() == [90, 1]
    assert parsed["crowd"].numpy().tolist() == [False, True]
    assert parsed["areas"].numpy().tolist() == [7.5, 200.0]
    assert parsed["encoded"].numpy() == b"jpeg"
    assert parsed["file_name"].numpy().decode() == "ä/a.jpg"


def test_records_of_others():
    """automl's may lack crowds, areas and the id."""
    feature = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"])),
        "image/object/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[3])),
        **{
            f"image/object/bbox/{side}": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5]))
            for side in ("xmin", "xmax", "ymin", "ymax")
        },
    }
    parsed = parse_record(
        tf.constant(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    )
    assert parsed["crowd"].numpy().tolist() == [False]
    assert parsed["areas"].shape == (0,)
    assert int(parsed["image_id"]) >= 0


def test_source_id_that_is_no_number_is_hashed_stably():
    content = encode_record(record()).replace(b"1099511627777", b"2007_00002777")
    first, second = (int(parse_record(tf.constant(content))["image_id"]) for _ in range(2))
    assert first == second != 2**40 + 1


def test_masks_and_captions():
    objects = [RecordObject(box_xywh=(0, 0, 1, 1), category_id=1, category_name="x", area=1.0, mask_png=b"png")]
    features = tf.train.Example.FromString(encode_record(record(objects=objects, captions=["hällo"]))).features.feature
    assert features["image/object/mask"].bytes_list.value == [b"png"]
    assert features["image/caption"].bytes_list.value == ["hällo".encode()]
