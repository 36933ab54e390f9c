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
    ("name", "content", "what"),
    [
        ("0001.txt", "0 0.5 0.5 0.25 0.125\n", "is a file of YOLO labels"),
        ("data.yaml", YOLO_DATA, "is a YOLO data.yaml"),
        ("annotations.xml", CVAT, "is a CVAT xml"),
        ("0001.json", LABELME, "is a labelme json"),
        ("boxes.csv", OPEN_IMAGES_CSV, "is a csv table"),
        ("a.xml", VOC, "is a Pascal VOC annotation"),
        ("a.json", COCO, "is a COCO json"),
    ],
)
def test_other_formats_are_named_with_the_program_that_reads_them(tmp_path, name, content, what):
    (tmp_path / name).write_text(content)
    lines = (
        [(coco_line(tmp_path / name), "a COCO json"), (coco_line(tmp_path), "a COCO json")] if content != COCO else []
    )
    lines += [(voc_line(tmp_path), "a Pascal VOC annotation")] if content != VOC else []
    for line, expected in lines:
        use = f"use dataset/create_tfrecord.py --images=FOLDER --annotations={tmp_path}"
        assert line == f"{tmp_path / name}: {what}, expected {expected}: {use}"


def test_what_is_of_the_right_kind_keeps_its_own_error(tmp_path):
    (tmp_path / "a.json").write_text(COCO)
    assert "lists no images" in coco_line(tmp_path / "a.json")
    (tmp_path / "b.csv").write_text(OPEN_IMAGES_CSV)
    (tmp_path / "a.xml").write_text("<annotation><object/></annotation>")
    assert "object 0 has no name" in voc_line(tmp_path)
    assert "cannot be read" in coco_line(tmp_path / "nosuch.json")
    (tmp_path / "c.json").write_text("[")
    assert "is not json" in coco_line(tmp_path / "c.json")
