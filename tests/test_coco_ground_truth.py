import json

import pytest

from object_detection.coco.evaluation import ground_truth_from_dataset
from program_support.errors import InputError


def dataset(**changes):
    annotation = {"id": 5, "image_id": 0, "category_id": 3, "bbox": [1, 2, 4.0, 5], "area": 12, "iscrowd": 1}
    return {
        "images": [{"id": 0, "height": 20, "width": 30}, {"id": 2**53 + 1}],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [{**annotation, **changes}],
    }


def test_by_hand():
    given = dataset()
    before = json.dumps(given)
    found = ground_truth_from_dataset(given, source="here")
    assert found.image_sizes == {0: (20, 30), 2**53 + 1: None}
    assert list(found.categories.items()) == [(3, "cat"), (7, "dog")]
    assert found.annotations == (
        {"id": 1, "image_id": 0, "category_id": 3, "bbox": [1, 2, 4.0, 5], "area": 12, "iscrowd": 1},
    )
    assert json.dumps(given) == before


def test_what_files_leave_out():
    given = dataset()
    for key in ("id", "area", "iscrowd"):
        del given["annotations"][0][key]
    annotation = ground_truth_from_dataset(given, source="here").annotations[0]
    assert (annotation["id"], annotation["area"], annotation["iscrowd"]) == (1, 20.0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"category_id": 4}, r"annotation 5 of image 0 has category_id 4; expected one of \[3, 7\]"),
        ({"category_id": "3"}, "category_id '3'; expected an integer"),
        ({"image_id": True}, "image_id True; expected an integer"),
        ({"image_id": "2299"}, "image_id '2299'; expected an integer"),
        ({"bbox": [1, 2, 3]}, r"bbox \[1, 2, 3\]; expected four"),
        ({"bbox": [1, 2, 3, float("nan")]}, "expected four finite"),
        ({"bbox": None}, "bbox None"),
        ({"area": "12"}, "area '12'"),
    ],
)
def test_wrong_annotations_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        ground_truth_from_dataset(dataset(**changes), source="here.json")


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        '{"images": [], "annotations": []}',
        '{"images": 3}',
        "null",
        '{"images": [], "annotations": [1], "categories": []}',
    ],
)
def test_other_json_is_refused(content):
    with pytest.raises(InputError, match=r"captions\.json: no list '.*instances_"):
        ground_truth_from_dataset(json.loads(content), source="captions.json")


def test_an_image_id_twice_is_refused():
    with pytest.raises(InputError, match="image id 0 occurs twice"):
        ground_truth_from_dataset({**dataset(), "images": [{"id": 0}, {"id": 0}]}, source="here")
