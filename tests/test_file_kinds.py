"""Every kind of file as its tool writes it, under a name that says nothing."""

import json
import os

import pytest
import tensorflow as tf
from PIL import Image

from dataset.files.file_kinds import FileKind, annotations_in, holds_records, kind_of_file, label_formats

LABELME = json.dumps(
    {
        "version": "5.4.1",
        "flags": {},
        "shapes": [{"label": "cat", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}],
        "imagePath": "a.jpg",
        "imageData": "A" * 10**5,
    }
)
CVAT = (
    '<?xml version="1.0" encoding="utf-8"?>\n<!-- <annotation> --><annotations><version>1.1</version>'
    '<image id="0" name="a.jpg"><box label="cat" xtl="1" ytl="2" xbr="3" ybr="4"/></image></annotations>'
)
VOC = '<?xml version="1.0"?><!DOCTYPE annotation>\n<annotation verified="no"><filename>a.jpg</filename></annotation>'
YOLO_DATA = "# Ultralytics\npath: ../data\ntrain: images/train\nval: images/val\n\nnames:\n  0: cat\n  1: dog\n"
COCO = json.dumps({"info": {}, "images": [], "annotations": [], "categories": []})
RETINANET_CSV = "a.jpg,1,2,3,4,cat\nb.jpg,,,,,\n"
OPEN_IMAGES_CSV = "ImageID,Source,LabelName,Confidence,XMin\n0001,xclick,/m/01,1,0.1\n"

KINDS = [
    (LABELME, label_formats()["labelme"]),
    (CVAT, label_formats()["cvat"]),
    (VOC, FileKind.VOC),
    (YOLO_DATA, FileKind.YOLO_DATA),
    ("train: ../train/images\nnc: 2\nnames: ['cat', 'dog']\n", FileKind.YOLO_DATA),
    ("names:\n  - cat\n  - dog\n", FileKind.YOLO_DATA),
    ("# classes\nnames: [cat, dog]\n", FileKind.YOLO_DATA),
    ("names: {0: cat}\n", FileKind.YOLO_DATA),
    ("names: cat\nsize: 7\n", FileKind.YAML),
    ("0 0.5 0.5 0.25 0.125\n12 0.1 0.2 0.3 0.4\n", FileKind.YOLO_LABELS),
    ("3 0.1 0.1 0.2 0.1 0.2 0.2", FileKind.YOLO_LABELS),
    (RETINANET_CSV, FileKind.CSV),
    (OPEN_IMAGES_CSV, FileKind.CSV),
    (OPEN_IMAGES_CSV.replace(",", ";"), FileKind.CSV),
    (COCO, FileKind.COCO),
    ("\ufeff" + COCO, FileKind.COCO),
    (COCO[:-10], FileKind.COCO),
    ("{", FileKind.JSON),
    (json.dumps([{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]), FileKind.COCO_RESULTS),
    ("[" * 10**5, FileKind.JSON),
    ("<html></html>", FileKind.XML),
    ("a: 1\nb:\n  - c\n", FileKind.YAML),
    ("PK\x03\x04rest", FileKind.ZIP),
    ("2012_1 1\n2012_2 -1\n", None),
    ("Some words about\nthe data set.\n", None),
    ("", None),
    ("1 2 3 4 5\n", None),
]


@pytest.mark.parametrize(("content", "kind"), KINDS)
def test_kind_is_told_by_content(tmp_path, content, kind):
    (tmp_path / "file").write_text(content, encoding="utf-8")
    assert kind_of_file(tmp_path / "file") is kind
    assert not holds_records(tmp_path / "file")


def test_utf16_of_other_tools(tmp_path):
    (tmp_path / "file").write_text(VOC, encoding="utf-16")
    assert kind_of_file(tmp_path / "file") is FileKind.VOC


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "tif", "webp", "jp2"])
def test_images(tmp_path, suffix):
    Image.new("RGB", (8, 8)).save(tmp_path / f"a.{suffix}")
    assert kind_of_file(tmp_path / f"a.{suffix}") is FileKind.IMAGE


@pytest.mark.parametrize(
    "length", [int.from_bytes(start, "little") for start in (b"BM\0", b"{}", b"<a>", b"II*", b"PK\3")]
)
def test_records_are_records_whatever_their_length_spells(tmp_path, length):
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        writer.write(b"\0" * length)
    assert kind_of_file(tmp_path / "file") is None
    assert holds_records(tmp_path / "file")


def test_what_cannot_be_read_has_no_kind(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "nosuch", "."):
        assert kind_of_file(tmp_path / name) is None
        assert not holds_records(tmp_path / name)


def test_annotations_of_a_folder(tmp_path):
    for name, content in (
        ("data.yaml", YOLO_DATA),
        ("labels/train/a.txt", "0 0.5 0.5 0.2 0.1"),
        ("notes.txt", "words"),
        ("results.json", json.dumps([{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}])),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert [(path.name, kind) for path, kind in annotations_in(tmp_path)] == [
        ("data.yaml", FileKind.YOLO_DATA),
        ("a.txt", FileKind.YOLO_LABELS),
    ]
    assert list(annotations_in(tmp_path / "nosuch")) == []
