import json

import pytest

from dataset.class_names import ClassNames
from dataset.conversion.annotations import AnnotatedObject, ReportEntry
from dataset.conversion.conversion_report import Report, check_fractions, readable_report, size_name, summary_lines
from program_support.errors import InputError

NAMES = ClassNames((1, 2, 3), ("cat", "dog", "bird"))
LOST_IMAGE = ReportEntry(kind="image", file="b.jpg", reason="truncated", image_id=7)
LOST_BOX = ReportEntry(kind="box", file="a.jpg", reason="no area", image_id=1, annotation_id=5)


def entry(category_id, area, **flags):
    return AnnotatedObject(annotation_id=1, category_id=category_id, box_xywh=(0, 0, 1, 1), area=area, **flags)


def part():
    report = Report(skipped=[LOST_IMAGE, LOST_BOX], boxes_of_skipped_images=4)
    report.add_image([entry(1, 5.0), entry(3, 2000.0, is_crowd=True), entry(3, 1e5, is_difficult=True)])
    report.add_image([])
    return report


def test_counts():
    content = readable_report(part(), NAMES)
    assert content["boxes_per_class"] == {"cat": 1, "dog": 0, "bird": 2}
    assert content["boxes_per_size"] == {"small": 1, "medium": 1, "large": 1}
    assert (content["images"], content["images_without_boxes"], content["images_skipped"]) == (2, 1, 1)
    assert (content["boxes"], content["crowd_boxes"], content["difficult_boxes"], content["boxes_skipped"]) == (
        3,
        1,
        1,
        5,
    )
    assert content["skipped"][0] == {"kind": "image", "file": "b.jpg", "reason": "truncated", "image_id": 7}


def test_two_parts_are_the_sum_also_through_json():
    total = part()
    total.add(Report.from_json(json.loads(json.dumps(part().to_json()))))
    twice = Report(skipped=[LOST_IMAGE, LOST_BOX] * 2, boxes_of_skipped_images=8)
    for _ in range(2):
        twice.add_image([entry(1, 5.0), entry(3, 2000.0, is_crowd=True), entry(3, 1e5, is_difficult=True)])
        twice.add_image([])
    assert total == twice
    empty = Report()
    empty.add(part())
    assert empty == part()


@pytest.mark.parametrize(("area", "name"), [(1023.9, "small"), (1024, "medium"), (9215.9, "medium"), (9216, "large")])
def test_sizes_of_coco(area, name):
    assert size_name(area) == name


def test_fractions():
    check_fractions(part(), listed_images=3, listed_boxes=8, max_bad_fraction=0.625)
    with pytest.raises(InputError, match=r"1 of 3 images would be skipped, 33\.33%.*b\.jpg \(image 7\): truncated"):
        check_fractions(part(), listed_images=3, listed_boxes=8, max_bad_fraction=0.3)
    with pytest.raises(InputError, match=r"5 of 8 boxes would be skipped, 62\.50%.*annotation 5\).*=0\.625$"):
        check_fractions(part(), listed_images=3, listed_boxes=8, max_bad_fraction=0.5)


def test_summary_names_what_was_skipped():
    text = "\n".join(summary_lines(part(), NAMES))
    assert "skipped  1 x box, 1 x image" in text
    assert "b.jpg (image 7): truncated" in text
    assert "bird 2" in text
    assert summary_lines(Report(), None)[0] == "images   0, 0 of them without boxes"
