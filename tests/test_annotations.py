import numpy as np
import pytest

from dataset.conversion.annotations import AnnotatedObject, checked_file_name, fitted_object
from program_support.errors import InputError

SIZE = (480, 640)  # height, width


def entry(*box, area=None):
    return AnnotatedObject(annotation_id=1, category_id=2, box_xywh=box, area=area)


@pytest.mark.parametrize(
    ("box", "area", "expected", "reason"),
    [
        ((10.0, 20.0, 30.5, 40.25), 77.0, ((10.0, 20.0, 30.5, 40.25), 77.0), ""),
        ((10.0, 20.0, 3.0, 4.0), None, ((10.0, 20.0, 3.0, 4.0), 12.0), ""),
        ((10.0, 20.0, 3.0, 4.0), 0.0, ((10.0, 20.0, 3.0, 4.0), 12.0), "area 0 replaced by that of the box, 12"),
        ((10.0, 20.0, 3.0, 4.0), 1e300, ((10.0, 20.0, 3.0, 4.0), 12.0), "area 1e+300 replaced by that of the box, 12"),
        ((600.0, -10.0, 100.0, 30.0), 3000.0, ((600.0, 0.0, 40.0, 20.0), 800.0), "clipped to [600, 0, 40, 20]"),
    ],
)
def test_boxes_are_clipped_with_their_area(box, area, expected, reason):
    fitted, found = fitted_object(entry(*box, area=area), SIZE)
    assert (fitted.box_xywh, fitted.area) == expected
    assert reason in (found or "")
    assert bool(reason) == bool(found)


@pytest.mark.parametrize("box", [(5, 5, 0, 9), (5, 5, 9, -1), (640, 5, 9, 9), (-9, 5, 9, 9), (5, 480, 1, 1)])
def test_box_without_area_is_dropped_with_a_reason(box):
    fitted, reason = fitted_object(entry(*map(float, box)), SIZE)
    assert fitted is None
    assert reason


def test_clipping_agrees_with_corners_on_random_boxes():
    random = np.random.default_rng(1)
    for box in random.uniform((-200, -200, 1, 1), (700, 600, 400, 400), (500, 4)):
        low = np.clip(box[:2], 0, (640, 480))
        high = np.clip(box[:2] + box[2:], 0, (640, 480))
        fitted, _ = fitted_object(entry(*box.tolist()), SIZE)
        if (high <= low).any():
            assert fitted is None
        else:
            np.testing.assert_allclose(fitted.box_xywh, [*low, *(high - low)], rtol=1e-12)


@pytest.mark.parametrize("name", ["a.jpg", "b/a.jpg", "b/../a.jpg", "..a.jpg", "./a.jpg"])
def test_names_below_the_folder(name):
    assert checked_file_name(name) == name


@pytest.mark.parametrize(
    "name", ["../a.jpg", "/etc/passwd", "b/../../b/a.jpg", "", None, 3, "a\0.jpg", "\ud800.jpg", "a\udcff.jpg"]
)
def test_names_that_leave_the_folder(name):
    with pytest.raises(InputError, match=r"^has file name"):
        checked_file_name(name)
