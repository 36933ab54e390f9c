import hashlib
import json
import os
import sys
from pathlib import Path

import forked_programs
import pytest
from PIL import Image
from pycocotools.coco import COCO

from dataset.class_names import ClassNames
from dataset.conversion.class_numbering import VOC_NAMES
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records

SCRIPT = Path(__file__).resolve().parent.parent / "dataset" / "create_pascal_tfrecord.py"
VOC_CLASSES = ClassNames(tuple(range(1, 21)), VOC_NAMES)
XML = (
    "<annotation><filename>{0}.jpg</filename><size><width>64</width><height>48</height></size><object><name>{1}"
    "</name><difficult>{2}</difficult><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>65</xmax><ymax>12</ymax></bndbox>"
    "</object></annotation>"
)


def call(*arguments, cwd):
    return forked_programs.run([sys.executable, SCRIPT, *arguments], env=os.environ, cwd=cwd)


@pytest.fixture
def devkit(tmp_path):
    year = tmp_path / "VOC2012"
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (year / folder).mkdir(parents=True)
    for number, name in enumerate(("dog", "cat")):
        Image.new("RGB", (64, 48)).save(year / "JPEGImages" / f"2012_{number}.jpg")
        (year / "Annotations" / f"2012_{number}.xml").write_text(XML.format(f"2012_{number}", name, number))
    (tmp_path / "cvat").mkdir()
    (tmp_path / "cvat" / "annotations.xml").write_text("<annotations><version>1.1</version></annotations>")
    (year / "ImageSets" / "Main" / "val.txt").write_text("2012_1\n")
    return tmp_path


def test_voc_layout(devkit):
    flags = (f"--data_dir={devkit}", "--year=VOC2012", "--set=val", "--output_path=out/val", "--num_shards=1")
    done = call(*flags, cwd=devkit)
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in (devkit / "out").glob("val-*")] == ["val-00000-of-00001.tfrecord"]
    written = json.loads((devkit / "out" / "val.instances.json").read_text())
    sha256 = hashlib.sha256((devkit / "VOC2012/JPEGImages/2012_1.jpg").read_bytes()).hexdigest()
    assert written["images"] == [{"id": 1, "file_name": "2012_1.jpg", "height": 48, "width": 64, "sha256": sha256}]
    assert written["annotations"] == [
        {
            "id": 1,
            "image_id": 1,
            "category_id": 8,
            "bbox": [1.0, 2.0, 63.0, 10.0],
            "area": 630.0,
            "iscrowd": 0,
            "difficult": 1,
        }
    ]
    assert len(COCO(str(devkit / "out" / "val.instances.json")).cats) == 20
    index = index_records([str(devkit / "out" / "val-00000-of-00001.tfrecord")])
    [annotation] = ground_truth_of_records(index, VOC_CLASSES)["annotations"]
    assert annotation["difficult"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --data_dir"),
        (["--image_dir=.", "--data_dir=."], "either --data_dir"),
        (["--image_dir=.", "--annotations_dir=nowhere"], "nowhere: no such folder"),
        (["--image_dir=."], ".: holds no XML file"),
        (
            ["--image_dir=cvat"],
            "annotations.xml: is not a VOC annotation: found <annotations> at the top, expected <annotation>",
        ),
        (["--data_dir=.", "--set=all"], "set"),
        (["--data_dir=.", "--year=VOC2012", "--set=test"], "test.txt: cannot be read"),
    ],
)
def test_mistakes_end_in_one_line(devkit, arguments, message):
    done = call("--output_file_prefix=out/train", *arguments, cwd=devkit)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
