"""What the converters say to the formats that they do not read."""

import pytest
from test_file_kinds import COCO, CVAT, LABELME, OPEN_IMAGES_CSV, VOC, YOLO_DATA

from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.format_recognition import recognized
from dataset.conversion.formats.coco import read_coco
from dataset.conversion.formats.voc import read_voc
from dataset.files.file_kinds import FileKind
from program_support.errors import InputError


def coco_line(path, expected=FileKind.COCO):
    with pytest.raises(InputError) as caught, recognized(str(path), expected=expected):
        read_coco(object_annotations_file=str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def voc_line(folder):
    with pytest.raises(InputError) as caught, recognized(str(folder), expected=FileKind.VOC):
        read_voc(annotations_folder=str(folder), images=ImageFolder(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "what", "of_folder"),
    [
        ("0001.txt", "0 0.5 0.5 0.25 0.125\n", "is a file of YOLO labels", True),
        ("data.yaml", YOLO_DATA, "is a YOLO data.yaml", False),
        ("annotations.xml", CVAT, "is a CVAT xml", False),
        ("0001.json", LABELME, "is a labelme json", True),
        ("boxes.csv", OPEN_IMAGES_CSV, "is a csv table", False),
    ],
)
def test_formats_of_labelling_tools(tmp_path, name, content, what, of_folder):
    advice = (
        f"use dataset/create_tfrecord.py --images=FOLDER --annotations={tmp_path if of_folder else tmp_path / name}"
    )
    (tmp_path / name).write_text(content)
    for line, wanted in (
        (coco_line(tmp_path / name), "expected a COCO json"),
        (coco_line(tmp_path), "expected a COCO json"),
        (voc_line(tmp_path), "expected a folder of Pascal VOC XML files"),
    ):
        assert line.startswith(f"{tmp_path / name}: {what}, {wanted}")
        assert line.endswith(advice)


def test_each_converter_points_to_the_other(tmp_path):
    (tmp_path / "a.xml").write_text(VOC)
    assert f"create_pascal_tfrecord.py --annotations_dir={tmp_path}" in coco_line(tmp_path / "a.xml")
    (tmp_path / "a.xml").unlink()
    (tmp_path / "a.json").write_text(COCO)
    assert f"create_coco_tfrecord.py --object_annotations_file={tmp_path / 'a.json'}" in voc_line(tmp_path)


def test_a_folder_in_place_of_its_file_and_a_file_in_place_of_its_folder(tmp_path):
    (tmp_path / "a.json").write_text(COCO)
    assert coco_line(tmp_path) == (
        f"{tmp_path}: is a folder, expected a file of it: --object_annotations_file={tmp_path / 'a.json'}"
    )
    (tmp_path / "a.xml").write_text(VOC)
    assert f"--annotations_dir={tmp_path}" in voc_line(tmp_path / "a.xml")


def test_what_is_of_the_right_kind_keeps_its_own_error(tmp_path):
    (tmp_path / "a.json").write_text(COCO)
    assert "lists no images" in coco_line(tmp_path / "a.json")
    (tmp_path / "b.csv").write_text(OPEN_IMAGES_CSV)
    (tmp_path / "a.xml").write_text("<annotation><object/></annotation>")
    assert "object 0 has no name" in voc_line(tmp_path)
    assert "cannot be read" in coco_line(tmp_path / "nosuch.json")
    (tmp_path / "c.json").write_text("[")
    assert "is not json" in coco_line(tmp_path / "c.json")
