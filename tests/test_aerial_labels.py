"""Labels of DOTA and VisDrone as their archives have them: folders, lines of the published files, odd lines."""

import re

import pytest
from label_sets import read_parts, write
from PIL import Image
from text_tables import rows

from dataset import create_tfrecord
from dataset.conversion.any_format import recognize
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.named_splits import split_of_folder
from dataset.files.bounded_files import read_json
from dataset.files.file_kinds import format_of_file
from program_support.errors import InputError

P0000 = """imagesource:GoogleEarth
gsd:0.146343590398
2753 2408 2861 2385 2888 2468 2805 2502 plane 0
3445 3391 3484 3409 3478 3422 3437 3402 large-vehicle 1
"""
P0003 = """acquisition dates:None
imagesource:GF-2
gsd:None
10.0 20.0 30.0 20.0 30.0 50.0 10.0 50.0 container-crane 2
60 60 70 60 70 80 60 80 helipad
"""
DRONE = """684,8,273,116,0,0,0,0
708,471,74,33,1,4,0,1
639,425,61,46,0,4,0,0,
100,100,20,40,0,11,0,0
"""


def draw(path, width, height):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((width, height), 60).convert("RGB").save(path)


def read(folder, *, with_masks=False):
    return recognize(str(folder)).format.name, read_parts(folder, folder, with_masks=with_masks)


def objects(data):
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
    return {image.file_name: [(names[one.category_id], one) for one in image.objects] for image in data.images}


@pytest.fixture
def dota(tmp_path):
    (tmp_path / "train" / "images").mkdir(parents=True)
    Image.new("L", (3875, 5502)).save(tmp_path / "train" / "images" / "P0000.png", compress_level=1)
    draw(tmp_path / "val" / "images" / "P0003.png", 100, 90)
    write(tmp_path / "train" / "labelTxt" / "P0000.txt", P0000)
    write(tmp_path / "val" / "labelTxt" / "P0003.txt", P0003)
    return tmp_path


@pytest.fixture
def drone(tmp_path):
    for split, name in (("train", "0000002_00005_d_0000014"), ("val", "0000001_0_d_1"), ("test-dev", "0000006_0_d_1")):
        folder = tmp_path / f"VisDrone2019-DET-{split}"
        draw(folder / "images" / f"{name}.jpg", 960, 540)
        write(folder / "annotations" / f"{name}.txt", DRONE)
    return tmp_path


def test_dota_has_boxes_around_its_outlines_and_the_splits_of_its_folders(dota):
    name, by_split = read(dota)
    assert (name, [*by_split]) == ("dota", ["train", "val"])
    ((_, plane), (_, vehicle)) = objects(by_split["train"])["train/images/P0000.png"]
    assert plane.box_xywh == (2753, 2385, 135, 117)
    assert [plane.is_difficult, vehicle.is_difficult] == [False, True]
    assert by_split["train"].class_names.names == ("container-crane", "helipad", "large-vehicle", "plane")
    found = objects(by_split["val"])["val/images/P0003.png"]
    assert [(name, one.box_xywh, one.is_difficult) for name, one in found] == [
        ("container-crane", (10, 20, 20, 30), True),
        ("helipad", (60, 60, 10, 20), False),
    ]
    assert [note.reason for note in by_split["train"].noted] == ["2 rotated boxes became the boxes around them"]


def test_dota_has_outlines_as_masks(dota):
    _, by_split = read(dota, with_masks=True)
    ((_, plane), _) = objects(by_split["train"])["train/images/P0000.png"]
    assert plane.segmentation == [[2753, 2408, 2861, 2385, 2888, 2468, 2805, 2502]]


def test_labels_beside_flat_images_name_the_split(tmp_path):
    draw(tmp_path / "images" / "P0000.png", 50, 50)
    draw(tmp_path / "images" / "P0001.png", 50, 50)
    for split, name in (("train", "P0000"), ("val", "P0001")):
        write(tmp_path / "labels" / split / f"{name}.txt", "1 1 9 1 9 9 1 9 ship 0\n")
    assert {split: [*objects(data)] for split, data in read(tmp_path)[1].items()} == {
        "train": ["images/P0000.png"],
        "val": ["images/P0001.png"],
    }


def test_visdrone_ignores_what_its_benchmark_ignores(drone):
    name, by_split = read(drone)
    assert (name, [*by_split]) == ("visdrone", ["train", "val", "test"])
    data = by_split["train"]
    assert data.class_names.category_ids == tuple(range(1, 11))
    assert (data.class_names.names[0], data.class_names.names[9]) == ("pedestrian", "motor")
    found = objects(data)["VisDrone2019-DET-train/images/0000002_00005_d_0000014.jpg"]
    cars = {one.box_xywh: one.is_crowd for name, one in found if name == "car"}
    assert cars == {
        (684, 8, 273, 116): True,  # an ignored region
        (708, 471, 74, 33): False,
        (639, 425, 61, 46): True,  # score 0
        (100, 100, 20, 40): True,  # one of the others
    }
    assert {one.box_xywh for name, one in found if name == "bus"} == {(684, 8, 273, 116), (100, 100, 20, 40)}


def test_visdrone_others_that_count_are_a_class(drone):
    for path in drone.rglob("*.txt"):
        path.write_text("1,2,30,40,1,11,0,0\n")
    data = read(drone)[1]["val"]
    assert (data.class_names.category_ids[-1], data.class_names.names[-1]) == (11, "others")
    assert [one.is_crowd for _, one in next(iter(objects(data).values()))] == [False]


ODD_LINES = rows(r"""
dota | '1 2 3 4 5 6 7 8' | is '1 2 3 4 5 6 7 8', expected x1 y1 .* class difficult
dota | '1 2 3 4 5 6 7 8 9 0' | expected x1 y1
dota | '1 2 3 4 5 6 7 nan plane 0' | a coordinate is 'nan', expected a finite number
dota | '1 2 3 4 5 6 7 1e30 plane 0' | expected at most 1e
drone | '1,2,3,4,0.93,4,-1,-1' | score '0.93', expected 0 or 1; other scores are those of a detector
drone | '1,2,3,4,1,12,0,0' | category '12', expected 0 to 11
drone | '1,2,3,4,1,4' | has 6 fields, expected 8
drone | '1,2,x,4,1,4,0,0' | a coordinate is 'x'
""")


@pytest.mark.parametrize(("layout", "line", "message"), ODD_LINES)
def test_odd_lines_are_skipped(request, layout, line, message):
    folder = request.getfixturevalue(layout)
    [path] = folder.glob("*train/*/*.txt") if layout == "drone" else folder.glob("train/*/*.txt")
    write(path, path.read_text() + line + "\n")
    (finding,) = read(folder)[1]["train"].skipped
    assert (finding.kind, finding.reason.startswith("line 5 ")) == ("box", True)
    assert re.search(message, finding.reason)


def test_a_text_file_of_another_kind_is_noted_and_an_empty_one_is_an_image_without_objects(dota):
    write(dota / "readme.txt", "DOTA is for academic purposes only\n")
    draw(dota / "train" / "images" / "P0007.png", 20, 20)
    write(dota / "train" / "labelTxt" / "P0007.txt", "")
    data = read(dota)[1]["train"]
    assert objects(data)["train/images/P0007.png"] == []
    assert next(note.reason for note in data.noted) == "is not a file of dota labels: ignored"


def test_files_without_objects_are_refused(tmp_path):
    draw(tmp_path / "P0000.png", 20, 20)
    write(tmp_path / "P0000.txt", "imagesource:GoogleEarth\ngsd:0.1\n")
    with pytest.raises(InputError, match="contains no boxes"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (P0000, "dota"),
        (P0003, "dota"),
        ("1 2 3 4 5 6 7 8 small vehicle 0\n", "dota"),
        (DRONE, "visdrone"),
        ("0 10 12 30 12 30 40 10 40\n", None),  # an oriented box of YOLO in pixels
        ("1,1,912,484,97,109,0,7,1\n", None),  # tracks
    ],
)
def test_kinds_of_files(tmp_path, text, kind):
    write(tmp_path / "a.txt", text)
    assert format_of_file(tmp_path / "a.txt") == kind


def test_folders_of_visdrone_name_splits():
    names = ["VisDrone2019-DET-train", "VisDrone2019-DET-val", "VisDrone2019-DET-test-dev", "train-dev"]
    assert [*map(split_of_folder, names)] == ["train", "val", "test", None]


@pytest.mark.parametrize("layout", ["dota", "drone"])
def test_conversion_writes_crowds_and_difficult_objects(request, layout):
    folder = request.getfixturevalue(layout)
    create_tfrecord.convert_labels(
        ConvertOptions(images=str(folder), output_dir=str(folder / "records"), num_threads=1)
    )
    annotations = read_json(str(folder / "records" / "train.instances.json"))["annotations"]
    counts = {"dota": (2, 0, 1), "drone": (22, 21, 0)}[layout]
    assert counts == (
        len(annotations),
        sum(one["iscrowd"] for one in annotations),
        sum(one.get("difficult", 0) for one in annotations),
    )
