import json

import pytest

from dataset.class_names import ClassNames, class_file_of, class_names_of_records, read_class_names
from object_detection.errors import InputError

PETS = ClassNames((0, 7, 300), ("cat", "dög, small", "bird"))


def test_order_is_that_of_the_ids():
    categories = [{"id": 300, "name": "bird"}, {"id": 0, "name": "cat"}, {"id": 7, "name": "dög, small"}]
    assert ClassNames.from_categories(categories) == PETS
    assert ClassNames.from_categories(PETS.to_categories()) == PETS
    assert len(PETS) == 3


def test_file_round_trip(tmp_path):
    PETS.write(tmp_path / "train.classes.json")
    assert read_class_names(tmp_path / "train.classes.json") == PETS


@pytest.mark.parametrize(("ids", "names"), [((), ()), ((1,), ("a", "b")), ((2, 1), ("a", "b")), ((1, 1), ("a", "b"))])
def test_broken_sets(ids, names):
    with pytest.raises(InputError, match="class names"):
        ClassNames(ids, names)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"categories": 3}', '{"categories": [{"id": 1}]}',
                                  '{"categories": []}', '{"categories": ["cat"]}'])
def test_broken_files_are_named(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(InputError, match=r"c\.json"):
        read_class_names(tmp_path / "c.json")


def test_absent_file():
    with pytest.raises(InputError, match="cannot be read"):
        read_class_names("/nowhere.json")


@pytest.mark.parametrize("name", ["train-00003-of-00032.tfrecord", "train-00003-of-00032", "train.tfrecord"])
def test_class_file_beside_records(tmp_path, name):
    assert class_file_of(tmp_path / name) == tmp_path / "train.classes.json"


def test_records_of_one_and_of_two_class_sets(tmp_path):
    a, b = (str(tmp_path / f"{name}-00000-of-00001.tfrecord") for name in "ab")
    assert class_names_of_records([a, b]) is None
    PETS.write(tmp_path / "a.classes.json")
    assert class_names_of_records([a, b]) == PETS
    (tmp_path / "b.classes.json").write_text(json.dumps({"categories": [{"id": 1, "name": "x"}]}))
    with pytest.raises(InputError, match="mix different class sets"):
        class_names_of_records([a, b])
