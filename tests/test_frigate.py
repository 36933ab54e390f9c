"""Events of Frigate's API as labels of its snapshots."""

import json
import re

import pytest
from label_sets import read_parts, write
from PIL import Image

from dataset import create_tfrecord
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.format_recognition import recognize
from program_support.errors import InputError

# An event that a user showed in https://github.com/blakeblackshear/frigate/issues/9764, here with a snapshot
EVENT = {
    "box": None,
    "camera": "Cam2",
    "data": {
        "attributes": [],
        "box": [0.20885416666666667, 0.09074074074074075, 0.1109375, 0.325],
        "region": [0.134375, 0.08796296296296297, 0.18541666666666667, 0.3296296296296296],
        "score": 0.85986328125,
        "top_score": 0.84326171875,
        "type": "object",
    },
    "end_time": 1707479773.981245,
    "false_positive": None,
    "has_clip": True,
    "has_snapshot": True,
    "id": "1707479767.784216-y40y02",
    "label": "person",
    "plus_id": None,
    "retain_indefinitely": False,
    "start_time": 1707479762.784216,
    "sub_label": None,
    "top_score": None,
    "zones": ["uppfart"],
}
STEM = "Cam2-1707479767.784216-y40y02"
SIZE = (192, 108)  # a tenth of the camera's 1920x1080
BOX = (40.1, 9.8, 21.3, 35.1)  # of the camera: 401, 98, 213 and 351 pixels


def event(number=0, **others):
    return {**EVENT, "id": f"{number}-abc", **others}


def read(folder, events, *, name="events.json"):
    write(folder / name, json.dumps(events))
    assert recognize(str(folder)).format.name == "frigate"
    [data] = read_parts(folder, folder).values()
    return data


def picture(folder, name, size=SIZE):
    Image.new("RGB", size).save(folder / name)


@pytest.mark.parametrize("clean", [".webp", ".png"])
def test_the_clean_copy_is_the_image(tmp_path, capsys, clean):
    picture(tmp_path, f"{STEM}.jpg", (100, 100))  # as with snapshots.crop
    picture(tmp_path, f"{STEM}-clean{clean}")
    data = read(tmp_path, [EVENT])
    [image] = data.images
    assert image.file_name == f"{STEM}-clean{clean}"
    assert image.objects[0].box_xywh == pytest.approx(BOX, abs=0.01)
    assert data.class_names.to_categories() == [{"id": 1, "name": "person"}]  # not the 20 classes of VOC
    assert not data.skipped
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("warning: an event labels one object")


def test_a_snapshot_without_a_clean_copy_is_used_with_a_warning(tmp_path, capsys):
    picture(tmp_path, f"{STEM}.jpg", (96, 54))  # as with snapshots.height
    [image] = read(tmp_path, [EVENT]).images
    assert image.objects[0].box_xywh == pytest.approx([side / 2 for side in BOX], abs=0.01)
    assert f"1 of 1 snapshots, such as {STEM}.jpg, have no clean copy" in capsys.readouterr().out


def test_a_cropped_snapshot_is_skipped(tmp_path):
    picture(tmp_path, f"{STEM}.jpg", (100, 100))
    picture(tmp_path, "Cam2-1-abc-clean.png")
    data = read(tmp_path, [EVENT, event(1)])
    assert [image.file_name for image in data.images] == ["Cam2-1-abc-clean.png"]
    [skipped] = data.skipped
    assert "has a snapshot of 100x100 and a camera with width / height 1.78: snapshots.crop was set" in skipped.reason


def test_events_without_an_object_in_a_snapshot_are_not_used(tmp_path):
    for number in range(7):
        picture(tmp_path, f"Cam2-{number}-abc-clean.webp")
    events = [
        event(0, label="dog"),
        event(1, has_snapshot=False),
        event(2, false_positive=True),
        event(3, end_time=None),
        event(4, data={"type": "audio", "score": 0.9}, label="bark"),
        event(5, data={}, box=[57, 220, 339, 424]),
        event(6),
    ]
    data = read(tmp_path, events)
    assert {image.file_name[5]: image.objects[0].category_id for image in data.images} == {"0": 1, "6": 2}
    assert data.class_names.names == ("dog", "person")
    assert [note.reason.partition(" of 7 events ")[2].removesuffix(": not used") for note in data.noted] == [
        "have no box, as those of sounds and those made by hand",
        "have no snapshot",
        "are false positives",
        "are in progress",
        "are of Frigate before 0.13 and have no data.box but a box in pixels, of another frame than the snapshot",
    ]
    with pytest.raises(InputError, match=r"none of its 1 events can be used: they are of Frigate before 0\.13"):
        read(tmp_path, events[5:6])


def test_files_of_single_events_and_pages_that_overlap(tmp_path):
    for number in (1, 2):
        picture(tmp_path, f"Cam2-{number}-abc-clean.webp")
    write(tmp_path / "page0.json", json.dumps([event(1), event(2)]))
    write(tmp_path / "other.json", json.dumps({"unrelated": 1}))
    data = read(tmp_path, event(2), name="one.json")
    assert [len(image.objects) for image in data.images] == [1, 1]
    assert not data.skipped


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data": {"box": [401, 98, 213, 351]}}, r"has data\.box \[401, 98, 213, 351\], expected x, y, width"),
        ({"data": {"box": [0.1, 0.2, 0.3]}}, r"expected a list of 4 numbers"),
        ({"data": {"box": [0.1, 0.2, "0.3", None]}}, r"has in data\.box '0\.3', expected a number"),
        ({"has_snapshot": [1]}, r"has has_snapshot \[1\], expected 1, true or yes"),
        ({"label": 7}, r"has label 7, expected text"),
        ({"camera": "../../etc", "id": {"a": 1}}, r"has id \{'a': 1\}, expected text"),
    ],
)
def test_an_odd_event_is_skipped_with_its_reason(tmp_path, fields, reason):
    picture(tmp_path, "Cam2-0-abc-clean.png")
    picture(tmp_path, "Cam2-1-abc.jpg")
    data = read(tmp_path, [event(0), event(1, **fields)])
    assert len(data.images) == 1
    [skipped] = data.skipped
    assert re.search(reason, skipped.reason)


def test_no_file_outside_the_folder_is_read(tmp_path):
    picture(tmp_path, "out-0-abc-clean.png")
    (tmp_path / "clips").mkdir()
    picture(tmp_path / "clips", "Cam2-1-abc-clean.png")
    data = read(tmp_path / "clips", [event(0, camera="../out"), event(1)])
    assert [image.file_name for image in data.images] == ["Cam2-1-abc-clean.png", "out-0-abc.jpg"]  # a missing image


def test_another_json_is_no_event(tmp_path):
    write(tmp_path / "events.json", "[{}]")
    picture(tmp_path, f"{STEM}.jpg")
    options = ConvertOptions(
        images=str(tmp_path), annotations=str(tmp_path), format="frigate", output_dir=str(tmp_path / "records")
    )
    with pytest.raises(InputError, match=r"has no events of Frigate, the reply of GET /api/events"):
        create_tfrecord.convert_labels(options)
