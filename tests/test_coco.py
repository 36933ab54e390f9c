import copy
import json

import pytest
from label_sets import check_accepted
from pycocotools.coco import COCO
from text_tables import rows

from dataset.conversion.formats.coco import read_coco
from program_support.errors import InputError

GOOD = {
    "categories": [{"id": 9, "name": "dog"}, {"id": 0, "name": "cat"}],
    "images": [{"id": 20180000001, "file_name": "a.jpg", "width": 30, "height": 20}, {"id": 0, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 20180000001, "category_id": 9, "bbox": [1, 2, 3, 4.5], "area": 5, "iscrowd": 1},
        {"id": 2.0, "image_id": 0, "category_id": 0.0, "bbox": [0, 0, 1, 1]},
    ],
}


@pytest.fixture
def write(tmp_path):
    def written(content, name="a.json"):
        (tmp_path / name).write_text(json.dumps(content))
        return str(tmp_path / name)

    return written


def changed(*path_and_value):
    """GOOD with the value at a path replaced."""
    *path, last, value = path_and_value
    content = copy.deepcopy(GOOD)
    place = content
    for key in path:
        place = place[key]
    place[last] = value
    return content


def test_reads_what_the_file_says(write):
    data = read_coco(object_annotations_file=write(GOOD))
    first, second = data.images
    assert (first.image_id, first.file_name, first.size) == (20180000001, "a.jpg", (20, 30))
    assert (second.image_id, second.size) == (0, None)
    assert first.objects[0].box_xywh == (1.0, 2.0, 3.0, 4.5)
    assert (first.objects[0].area, first.objects[0].is_crowd, first.objects[0].category_id) == (5.0, True, 9)
    assert (second.objects[0].area, second.objects[0].is_crowd, second.objects[0].annotation_id) == (None, False, 2)
    assert data.class_names.category_ids == (0, 9)
    assert data.class_names.names == ("cat", "dog")
    assert data.listed_boxes == 2


def test_agrees_with_pycocotools(data_folder, capsys):
    path = str(data_folder / "coco_sample" / "annotations" / "instances_val2017.json")
    oracle = COCO(path)
    data = read_coco(object_annotations_file=path, with_segmentation=True)
    assert [image.image_id for image in data.images] == list(oracle.imgs)
    for image in data.images:
        expected = oracle.loadAnns(oracle.getAnnIds(imgIds=[image.image_id]))
        assert [annotation.annotation_id for annotation in image.objects] == [entry["id"] for entry in expected]
        assert [list(annotation.box_xywh) for annotation in image.objects] == [entry["bbox"] for entry in expected]
        assert [annotation.is_crowd for annotation in image.objects] == [bool(entry["iscrowd"]) for entry in expected]


REFUSED = [  # place of a value in GOOD, the value, and the message
    *rows(r"""
annotations 0 category_id | 5 | image 20180000001, annotation 1\): has category 5.*0, 9
annotations 0 category_id | True | has category_id True
annotations 0 bbox | [1, 2, 3, 1e999] | inf
annotations 0 bbox | None | annotation 1.: has neither a bbox nor a segmentation
annotations 0 area | 'big' | has area 'big'
annotations 0 iscrowd | 2 | has iscrowd 2
annotations 0 | 7 | annotations\[0\] has image_id None
images 0 id | -1 | images\[0\] has id -1
images 0 id | 1.5 | 1.5, expected an integer
images 0 width | -1 | of id 20180000001: has width -1
images 1 id | 20180000001 | given twice, to 'a.jpg' and 'b.jpg'
images | {} | 'images' is a dict
categories 0 name | None | category 9 has name None
categories 0 id | 0 | not ascending and distinct
images 0 file_name | '\ud800.jpg' | of id 20180000001: has file name '\\ud800.jpg', expected text .* UTF-8
images 0 file_name | 'a\0.jpg' | without NUL
categories 0 name | '\udcff' | category 9 has name '\\udcff', expected text
categories 0 name | 'a\nb' | category 9 has name 'a\\nb', expected text of one line
categories 0 name | ' cat ' | 'cat' is the name of categories \[0, 9\], expected distinct names
annotations | [{"id": 1, "image_id": 0, "caption": "a dog"}] | none of its 1 captions has a box
"""),
    ("annotations 0 bbox", [1, 2, 3, 10**400], "finite"),
    ("images 0 id", 10**4000, r"images\[0\] has id 1000+\.\.\.0+, expected 0 to"),
    ("annotations 0 image_id", {"a": [7] * 99}, r"has image_id \{'a': \[7, 7, 7, 7, 7, 7, \.\.\.\]\}"),
]


@pytest.mark.parametrize(("place", "value", "message"), REFUSED)
def test_refuses(write, place, value, message):
    path = write(changed(*(int(key) if key.isdecimal() else key for key in place.split()), value))
    with pytest.raises(InputError, match=message) as caught:
        check_accepted(read_coco(object_annotations_file=path))
    assert path in str(caught.value)


def test_annotations_of_unknown_images_are_skipped(write):
    data = read_coco(object_annotations_file=write(changed("annotations", 1, "image_id", 77)))
    assert [(finding.image_id, finding.annotation_id) for finding in data.skipped] == [(77, 2)]
    assert data.listed_boxes == 2


def test_detections_are_taken_as_labels_with_a_note(write):
    data = read_coco(object_annotations_file=write(changed("annotations", 1, "score", 0.9)))
    assert data.listed_boxes == 2
    assert "1 of 2 annotations have a score, as detections do: taken as labels" in [one.reason for one in data.noted]


def test_captions_need_boxes_beside_them(write):
    captions = write(
        {"annotations": [{"id": 4, "image_id": 0, "caption": "a cat"}, {"id": 5, "image_id": 8, "caption": "gone"}]},
        "captions.json",
    )
    data = read_coco(object_annotations_file=write(GOOD), caption_annotations_file=captions)
    assert data.images[1].captions == ["a cat"]
    assert [finding.kind for finding in data.noted].count("caption") == 1
    with pytest.raises(InputError, match="captions alone hold no boxes"):
        read_coco(caption_annotations_file=captions)


def test_nothing_to_read():
    with pytest.raises(InputError, match="--object_annotations_file"):
        read_coco()
    with pytest.raises(InputError, match=r"/nowhere\.json: cannot be read"):
        read_coco(object_annotations_file="/nowhere.json")


def test_masks_need_segmentations(write):
    with pytest.raises(InputError, match=r"image 20180000001, annotation 1\): has no segmentation"):
        check_accepted(read_coco(object_annotations_file=write(GOOD), with_segmentation=True))


def test_text_that_json_holds_and_utf8_does_not(write):
    captions = write({"annotations": [{"id": 4, "image_id": 0, "caption": "a \ud800 cat"}]}, "captions.json")
    with pytest.raises(InputError, match=r"captions.json: annotations\[0\] of image 0 has caption 'a \\ud800 cat'"):
        read_coco(object_annotations_file=write(GOOD), caption_annotations_file=captions)


@pytest.mark.parametrize("place", ['"id": 20180000001', '"width": 30', '"area": 5', '"id": 9'])
def test_numbers_of_thousands_of_digits(place, tmp_path):
    text = json.dumps(GOOD).replace(place, place[: place.rindex(" ") + 1] + "1" * 5000)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"a\.json: contains an integer with thousands of digits"):
        read_coco(object_annotations_file=str(tmp_path / "a.json"))


def test_deep_segmentations_are_skipped_before_they_are_sent_to_a_process(write):
    content = changed("annotations", 1, "segmentation", {"size": [1, 1], "counts": [1]})
    content["annotations"][0]["segmentation"] = json.loads("[" * 500 + "]" * 500)
    data = read_coco(object_annotations_file=write(content), with_segmentation=True)
    assert [(finding.annotation_id, finding.image_id) for finding in data.skipped] == [(1, 20180000001)]
    assert [len(image.objects) for image in data.images] == [0, 1]


def test_fingerprint_follows_the_content(write):
    first = read_coco(object_annotations_file=write(GOOD)).fingerprint
    assert first == read_coco(object_annotations_file=write(GOOD, "elsewhere.json")).fingerprint
    assert first != read_coco(object_annotations_file=write(changed("annotations", 0, "area", 6))).fingerprint
