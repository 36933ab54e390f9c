import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tiny_records
from drawn_records import draw_records
from log_lines import logged
from PIL import Image

from dataset.class_names import ClassNames
from dataset.records.labeled_records import labeled_records
from dataset.records.record_fields import record_fields
from dataset.records.record_index import index_records
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.data_checks.examination import with_suggestions
from efficientdet.families.registry import hyperparameters_of
from program_support.errors import InputError

ONE = ClassNames((1,), ("a",))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 9})


def test_boxes_of_records_are_those_of_the_annotations(drawn):
    index = index_records(drawn.records("train"))
    images = labeled_records(index, drawn.class_names)
    content = json.loads(Path(drawn.annotations("train")).read_text())
    assert len(images.boxes) == len(content["annotations"]) > 9
    for entry in content["images"]:
        number = images.names.index(entry["file_name"])
        objects = [one for one in content["annotations"] if one["image_id"] == entry["id"]]
        ours = images.objects_of(number)
        boxes = np.array([one["bbox"] for one in objects]).reshape(-1, 4)
        expected = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)[:, [1, 0, 3, 2]]
        np.testing.assert_allclose(images.boxes[ours], expected, atol=1e-3)
        ids = [images.class_names.category_ids[number] for number in images.classes[ours]]
        assert ids == [one["category_id"] for one in objects]
        assert images.sizes[number].tolist() == [entry["height"], entry["width"]]
        assert images.encoded(number) == (drawn.folder / "train" / entry["file_name"]).read_bytes()
        assert Image.open(BytesIO(images.encoded(number))).size == tuple(images.sizes[number, ::-1].tolist())
    some = labeled_records(index, drawn.class_names, [1, 4, 8])
    assert some.names == [images.names[number] for number in (1, 4, 8)]
    assert some.encoded(2) == images.encoded(8)


def written(tmp_path, *payloads):
    return index_records([tiny_records.write(tmp_path / "r", payloads)])


def test_records_of_other_programs(tmp_path):
    """Without sizes, names and crowds, and values that are not packed, as early writers had them."""
    plain = tiny_records.altered(7, {"height": None, "width": None, "filename": None, "object/is_crowd": None}, boxes=2)
    images = labeled_records(written(tmp_path, plain, tiny_records.without_box_keys(3)), ONE)
    assert images.sizes.tolist() == [[16, 16], [16, 16]]
    assert (images.names, images.counts().tolist(), images.crowd.tolist()) == (["7", "3.jpg"], [2, 0], [False, False])
    unpacked = bytes([0x0D, 0, 0, 0x80, 0x3F, 0x0D, 0, 0, 0, 0x40])  # floats 1 and 2, each with a tag
    feature = bytes([0x12, len(unpacked)]) + unpacked
    entry = b"\x0a\x01k\x12" + bytes([len(feature)]) + feature
    features = b"\x0a" + bytes([len(entry)]) + entry
    example = b"\x0a" + bytes([len(features)]) + features
    assert tf.train.Example.FromString(example).features.feature["k"].float_list.value == [1, 2]
    assert record_fields(example, 0, len(example), {b"k"})[b"k"].tolist() == [1, 2]


def test_negative_and_large_integers():
    values = [-1, 0, 127, 128, 2**40, -(2**63)]
    example = tf.train.Example(
        features=tf.train.Features(feature={"k": tf.train.Feature(int64_list=tf.train.Int64List(value=values))})
    ).SerializeToString()
    assert record_fields(example, 0, len(example), {b"k"})[b"k"].tolist() == values


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (tiny_records.altered(1, {"object/bbox/xmin": [0.1, 0.2]}), "at byte 0 holds lists of unequal lengths"),
        (tiny_records.example(1, category_id=9), "unknown category ids [9]"),
        (tiny_records.example(1)[:-3], "ends in the middle of a field"),
        (b"\xff" * 30, "has a number of more than 64 bits"),
    ],
)
def test_broken_records_are_refused(tmp_path, payload, message):
    with pytest.raises(InputError, match="r: ") as error:
        labeled_records(written(tmp_path, payload), ONE)
    assert message in str(error.value)


def config(drawn, **settings):
    hparams = hyperparameters_of("efficientdet-d0", settings.pop("hparams", {}))
    return TrainingConfig(
        hparams=hparams,
        records=drawn.records("train"),
        val_records=(),
        val_json_file=None,
        class_names=drawn.class_names,
        model_dir="unused",
        **settings,
    )


FITTING = {"image_size": 256, "anchor_scale": 2.8, "jitter_min": 0.9, "jitter_max": 1.1}


def test_training_is_told_nothing_of_healthy_records(drawn):
    healthy = config(drawn, hparams=FITTING)
    assert logged(with_suggestions, healthy) == (healthy, [])


def test_training_is_told_what_is_wrong_and_mended_if_it_asks(drawn):
    wrong = config(drawn, hparams=FITTING | {"anchor_scale": 12.0, "max_instances_per_image": 1})
    same, lines = logged(with_suggestions, wrong)
    assert same == wrong
    assert [line.split(":")[0] for line in lines[:-1]] == ["warning", "warning"]
    assert lines[-1].startswith("--suggest, or --hparams=anchor_scale=")
    mended, lines = logged(with_suggestions, replace(wrong, suggest=True))
    assert mended.hparams.anchor_scale < 6
    assert mended.hparams.max_instances_per_image > 1
    assert {"anchor_scale", "max_instances_per_image"} <= mended.hparams_given
    kept, _ = logged(with_suggestions, replace(wrong, suggest=True, hparams_given=frozenset({"anchor_scale"})))
    assert kept.hparams.anchor_scale == 12.0
    assert kept.hparams.max_instances_per_image == mended.hparams.max_instances_per_image


def of_two_classes(tmp_path, kinds, *, copies=1):
    """Records of one object each; kinds: category id and "crowd", "difficult" or "" of each."""
    payloads = [
        tiny_records.altered(
            number,
            {
                "object/class/label": [category],
                "object/is_crowd": [int(kind == "crowd")],
                "object/difficult": [int(kind == "difficult")],
            },
        )
        for number, (category, kind) in enumerate(kinds * copies)
    ]
    return (tiny_records.write(tmp_path / f"{len(list(tmp_path.iterdir()))}", payloads),)


def of_records(drawn, training, validation=(), **settings):
    names = ClassNames((1, 2), ("cup", "pen"))
    return replace(
        config(drawn, hparams={"image_size": 128}, **settings),
        records=training,
        val_records=validation,
        class_names=names,
    )


def test_training_is_refused_where_no_object_can_be_trained_on_or_measured(drawn, tmp_path):
    usable, crowds = of_two_classes(tmp_path, [(1, ""), (2, "")]), of_two_classes(tmp_path, [(1, "crowd")] * 3)
    difficult = of_two_classes(tmp_path, [(1, "difficult"), (2, "crowd")])
    with pytest.raises(InputError, match=r"none of the 3 objects can be trained on \(3 crowds\); --crowds_as_objects"):
        logged(with_suggestions, of_records(drawn, crowds))
    logged(with_suggestions, of_records(drawn, crowds, benchmark=True))
    trained = of_records(drawn, crowds)
    logged(with_suggestions, replace(trained, hparams=trained.hparams.overridden({"train_on_crowds": True})))
    with pytest.raises(InputError, match=r"counted in the AP \(1 crowd, 1 difficult\); .*--training_mode=train300"):
        logged(with_suggestions, of_records(drawn, usable, difficult))
    logged(with_suggestions, of_records(drawn, usable, difficult, training_mode="train300"))
    empty = tiny_records.write(tmp_path / "empty", [tiny_records.without_box_keys(number) for number in range(2)])
    with pytest.raises(InputError, match="the 2 images have no objects; expected records with labels"):
        logged(with_suggestions, of_records(drawn, (empty,)))


def test_training_warns_of_classes_without_a_usable_object_after_reading_all_records(drawn, tmp_path):
    """A sample alone would not tell either: it has no usable pen, and of many records no sample has all."""
    usable, crowd_pens = of_two_classes(tmp_path, [(1, ""), (2, "")]), [(1, ""), (2, "crowd")]
    lines = logged(with_suggestions, of_records(drawn, of_two_classes(tmp_path, crowd_pens), usable))[1]
    assert any("1 of 2 classes have no object that is trained on: pen (1 object)" in line for line in lines)
    lines = logged(with_suggestions, of_records(drawn, usable, of_two_classes(tmp_path, [(1, ""), (2, "difficult")])))[
        1
    ]
    assert any("1 of 2 classes have no object that is counted in the AP: pen (1 object)" in line for line in lines)
    shards = [*of_two_classes(tmp_path, crowd_pens), *of_two_classes(tmp_path, [(2, "")])] * 8
    lines = logged(with_suggestions, of_records(drawn, tuple(shards[:16])))[1]
    assert not any("no object" in line for line in lines)
