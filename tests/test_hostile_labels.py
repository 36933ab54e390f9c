"""Labeling tools' files with one value replaced by another: converted, or refused or skipped in one short line."""

import copy
import json
import math

import pytest
from label_sets import PICTURES, WRITERS, draw, read_parts, write
from test_format_recognition import CVAT_IMAGE

from dataset.conversion.annotations import fitted_object
from program_support.errors import InputError

SIZE = 48, 64  # height, width
FORMATS = ("coco", "labelme", "label_studio")
VALUES = (
    None,
    10**400,
    math.nan,
    "a" * 5000,
    "\ud800",
    "\x1b[2J\u202e\n",
    [None],
)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    draw(PICTURES, folder)
    return folder


def places(value, at=()):
    """Yield the path of each value in a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*at, key)
        yield from places(inner, (*at, key))


def changed(value, at, new):
    value = copy.deepcopy(value)
    place = value
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = new
    return value


def outcome(file, label_format, photos):
    """Return the objects of each image, and what was reported."""
    parts = read_parts(file, photos, label_format=label_format)
    reported = [found.reason for data in parts.values() for found in data.noted]
    for image in (image for data in parts.values() for image in data.images):
        fitted = [fitted_object(one, SIZE) for one in image.objects if not image.in_shares]
        reported += [reason for _, reason in fitted if reason]
    reported += [found.reason for data in parts.values() for found in data.skipped]
    return {image.file_name: image.objects for data in parts.values() for image in data.images}, reported


@pytest.mark.parametrize("name", FORMATS)
def test_every_value_replaced_by_others(name, tmp_path, photos):
    WRITERS[name](PICTURES[1:2], tmp_path)
    [file] = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert outcome(file, name, photos)
    for at in places(content):
        for value in VALUES:
            file.write_text(json.dumps(changed(content, at, value)))
            try:
                _, messages = outcome(file, name, photos)
            except InputError as error:
                messages = [str(error)]
                assert messages[0].isprintable(), (at, value)
            assert all(0 < len(message) < 1500 for message in messages), (at, value)


def test_one_class_name_refuses_only_its_box(tmp_path, photos):
    for label, reason in (("x" * 10**6, "has a name of 1000000 characters"), ("a\nb", "expected text of one line")):
        WRITERS["label_studio"](PICTURES[:1], tmp_path)
        content = json.loads((tmp_path / "tasks.json").read_text())
        content[0]["annotations"][0]["result"][0]["value"]["rectanglelabels"] = [label]
        write(tmp_path / "tasks.json", json.dumps(content))
        images, [*_, skipped] = outcome(tmp_path / "tasks.json", "label_studio", photos)
        assert len(images["a.jpg"]) == 1
        assert reason in skipped


def test_run_lengths_that_are_a_number(tmp_path, photos):
    """`bytes` of a number would be as many zeros: 2 GB here."""
    WRITERS["label_studio"](PICTURES[:1], tmp_path)
    content = json.loads((tmp_path / "tasks.json").read_text())
    opaque = [0, 0, 48, 0, 63, 255, 252, 47, 255, 255]  # a run of 12,288 times 255: 64x48 pixels of 4 values
    value = {"format": "rle", "rle": opaque, "brushlabels": ["nut"]}
    content[0]["annotations"][0]["result"][1]["value"] = value
    for run_lengths in (opaque, 2**31, 10**400, [10**400], opaque[:-1], "x"):
        value["rle"] = run_lengths
        write(tmp_path / "tasks.json", json.dumps(content))
        images, [*_, last] = outcome(tmp_path / "tasks.json", "label_studio", photos)
        assert len(images["a.jpg"]) == (2 if run_lengths is opaque else 1)
        assert ("has a brush mask that is not one of 64x48 pixels" in last) == (run_lengths is not opaque)


def test_an_image_in_place_of_its_name(tmp_path, photos):
    """Each form of a name is a string of its length: that of an encoded image is not looked for."""
    WRITERS["label_studio"](PICTURES[:2], tmp_path)
    content = json.loads((tmp_path / "tasks.json").read_text())
    content[0]["data"]["image"] = "data:image/png;base64," + "A" * 10**6
    write(tmp_path / "tasks.json", json.dumps(content))
    images, [*_, skipped] = outcome(tmp_path / "tasks.json", "label_studio", photos)
    assert [*images] == ["b.jpg"]
    assert "has file name 'data:image/png;base64,AAA" in skipped
    content[0]["data"]["image"] = f"https://bucket/a.jpg?signature={'A' * 3000}"
    write(tmp_path / "tasks.json", json.dumps(content))
    assert [*outcome(tmp_path / "tasks.json", "label_studio", photos)[0]] == ["a.jpg", "b.jpg"]


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ('<box label="nut" xtl="9" ytl="2" xbr="3" ybr="6" rotation="90"/>', "which has no area"),
        ('<box label="nut" xtl="9" ytl="2" xbr="9" ybr="6" rotation="45"/>', "which has no area"),
        ('<ellipse label="nut" cx="10" cy="20" rx="-4" ry="2"/>', "has the radii -4 and 2, expected more than 0"),
        ('<box label="nut" xtl="1_0" ytl="2" xbr="30" ybr="6"/>', "xtl is '1_0', expected a finite number"),
    ],
)
def test_shapes_that_would_become_another_box(tmp_path, photos, shape, reason):
    write(tmp_path / "a.xml", CVAT_IMAGE.format(shape + '<box label="nut" xtl="1" ytl="2" xbr="3" ybr="6"/>'))
    images, reported = outcome(tmp_path / "a.xml", "cvat", photos)
    assert [one.box_xywh for one in images["a.jpg"]] == [(1, 2, 2, 4)]
    assert reason in reported[0]
