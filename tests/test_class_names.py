import json

import pytest
from text_tables import rows

from dataset.class_names import LONGEST_CLASS_NAME, ClassNames, class_file_of, class_names_of_records, read_class_names
from program_support.errors import InputError

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


def test_two_classes_of_one_name():
    with pytest.raises(InputError, match=r"'cat' is the name of categories \[1, 3\], expected distinct names"):
        ClassNames((1, 2, 3), ("cat", "dog", "cat"))


def test_name_beyond_the_length_limit(tmp_path):
    longest = "x" * LONGEST_CLASS_NAME
    assert ClassNames.from_categories([{"id": 1, "name": f" {longest} "}]).names == (longest,)
    (tmp_path / "c.json").write_text(json.dumps({"categories": [{"id": 4, "name": longest + "x"}]}))
    with pytest.raises(
        InputError,
        match=r"c\.json: category 4 has a name of 201 characters, 'x+\.\.\.x+'; "
        "expected at most 200",
    ):
        read_class_names(tmp_path / "c.json")


def test_blanks_around_a_name_are_no_part_of_it():
    assert ClassNames.from_categories([{"id": 1.0, "name": " cat\n"}, {"id": 2, "name": "Cat"}]) == ClassNames(
        (1, 2), ("cat", "Cat")
    )
    with pytest.raises(InputError, match="'cat' is the name of categories"):
        ClassNames.from_categories([{"id": 1, "name": "cat"}, {"id": 2, "name": "cat "}])


BROKEN = rows(r"""
{"id": "1", "name": "a"} | categories\[0\] has id '1', expected a number
{"id": True, "name": "a"} | has id True
{"id": 1000000000000000000, "name": "a"} | has id 10{18}, expected
{"id": -1000000000000000000, "name": "a"} | expected -9
{"id": 1, "name": 3} | category 1 has name 3, expected text
{"id": 1, "name": " "} | category 1 has name ''
{"id": 1, "name": "a\0b"} | category 1 has name
{"id": 1, "name": "a\tb"} | expected text of one line
{"id": 1, "name": "a\x1b[2J"} | without control characters
{"id": 1, "name": "photo\u202egpj"} | 'photo\\u202egpj', expected text of one line without control
{"id": 1, "name": "\ud800"} | UTF-8
7 | is 7, expected an object
""")


@pytest.mark.parametrize(("entry", "message"), BROKEN)
def test_broken_entries(entry, message):
    with pytest.raises(InputError, match=message):
        ClassNames.from_categories([entry])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**5,
        '{"categories": [{"id": ' + "1" * 5000 + "}]}",
        "",
        "[]",
        "{}",
        '{"categories": 3}',
        '{"categories": [{"id": 1}]}',
        '{"categories": []}',
        '{"categories": ["cat"]}',
    ],
)
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
