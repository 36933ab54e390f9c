"""Every malformed file has the outcome that docs/guides/data.md documents."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from text_tables import rows

from dataset.conversion.formats.coco import read_coco
from dataset.conversion.shards import ConversionConfig, convert
from dataset.records.schema import parse_record
from program_support.errors import InputError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "data.md"
ROW = re.compile(r"^\| `([^`]+)` \| (kept|fixed|noted|skipped|refused) \|", re.MULTILINE)


def promised(section: str) -> dict[str, str]:
    """Return file name -> outcome, from the table of the section."""
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    rows = ROW.findall(rest.partition("\n## ")[0])
    assert len(rows) == len(dict(rows)), "a file has two rows"
    return dict(rows)


IMAGES, ANNOTATIONS = promised("Unusual and damaged images"), promised("Unusual and invalid annotations")


def settings(folder: Path, prefix: Path, *, max_bad_fraction: float = 1.0) -> ConversionConfig:
    return ConversionConfig(
        image_folder=str(folder),
        output_prefix=str(prefix),
        num_shards=2,
        processes=1,
        max_bad_fraction=max_bad_fraction,
    )


@pytest.fixture(scope="module")
def converted_images(data_folder, tmp_path_factory):
    """Report and decoded records of all odd images, each with one box, none with a size."""
    folder = tmp_path_factory.mktemp("images")
    content = {
        "categories": [{"id": 3, "name": "thing"}],
        "images": [{"id": number, "file_name": name} for number, name in enumerate(IMAGES)],
        "annotations": [
            {"id": number + 1, "image_id": number, "category_id": 3, "bbox": [0, 0, 1, 1]}
            for number in range(len(IMAGES))
        ],
    }
    (folder / "all.json").write_text(json.dumps(content))
    report = convert(
        read_coco(object_annotations_file=str(folder / "all.json")), settings(data_folder / "malformed", folder / "all")
    )
    records = {}
    for path in sorted(folder.glob("all-*")):
        for serialized in tf.data.TFRecordDataset(str(path)):
            example = tf.train.Example.FromString(serialized.numpy()).features.feature
            name = example["image/filename"].bytes_list.value[0].decode()
            encoded = example["image/encoded"].bytes_list.value[0]
            records[name] = (example, encoded, tf.io.decode_jpeg(encoded, channels=3).numpy())
            assert int(parse_record(serialized)["image_id"]) == list(IMAGES).index(name)
    return report, records


def test_every_file_has_a_row(data_folder):
    folder = data_folder / "malformed"
    images = {
        path.name
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in (".md", ".json") and not path.name.startswith("LICENSE")
    }
    assert set(IMAGES) == images
    assert set(ANNOTATIONS) == {path.name for path in (folder / "annotations").iterdir()} - {"MANIFEST.json"}


@pytest.mark.parametrize("name", IMAGES)
def test_image(name, converted_images, data_folder):
    report, records = converted_images
    fixed, skipped = ({finding.file for finding in findings} for findings in (report.fixed, report.skipped))
    outcome = "skipped" if name in skipped else "fixed" if name in fixed else "kept"
    assert outcome == IMAGES[name]
    assert (name in records) == (outcome != "skipped")
    if name in records:
        example, encoded, pixels = records[name]
        assert pixels.shape == (
            example["image/height"].int64_list.value[0],
            example["image/width"].int64_list.value[0],
            3,
        )
        assert (encoded == (data_folder / "malformed" / name).read_bytes()) == (outcome == "kept")


@pytest.mark.parametrize("name", ["adobe_rgb_no_ycc.jpg", "cmyk_pillow.jpg", "no_eoi.jpg", "progressive.jpg"])
def test_colors_are_those_of_the_baseline(name, converted_images):
    records = converted_images[1]
    difference = np.abs(records[name][2].astype(int) - records["ok_baseline.jpg"][2])
    assert difference.mean() < 3.0


def test_16_bits_become_8(converted_images):
    small = np.asarray(tf.image.resize(converted_images[1]["ok_baseline.jpg"][2], (120, 160), method="area"))
    gray = small @ [0.299, 0.587, 0.114]
    assert np.abs(converted_images[1]["png_16bit_gray.png"][2][..., 0] - gray).mean() < 4.0


def test_exif_rotation_is_ignored(converted_images):
    upright = converted_images[1]["ok_baseline.jpg"][2].astype(int)
    assert np.abs(converted_images[1]["exif_orient_3.jpg"][2][::-1, ::-1] - upright).mean() < 3.0


@pytest.mark.parametrize("name", [name for name, outcome in ANNOTATIONS.items() if outcome == "refused"])
def test_refused_annotations(name, data_folder, tmp_path):
    path = data_folder / "malformed" / "annotations" / name
    with pytest.raises(InputError, match=rf"{re.escape(name)}|bccd/images") as caught:
        convert(
            read_coco(object_annotations_file=str(path)), settings(data_folder / "bccd" / "images", tmp_path / "train")
        )
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("train-*"))


@pytest.mark.parametrize("name", [name for name, outcome in ANNOTATIONS.items() if outcome != "refused"])
def test_accepted_annotations(name, data_folder, tmp_path):
    path = data_folder / "malformed" / "annotations" / name
    report = convert(
        read_coco(object_annotations_file=str(path)), settings(data_folder / "bccd" / "images", tmp_path / "train")
    )
    outcome = next((word for word in ("skipped", "fixed", "noted") if getattr(report, word)), "kept")
    assert outcome == ANNOTATIONS[name]
    assert report.boxes == 37 - report.skipped_count("box")
    assert report.images == 2 - report.skipped_count("image")
    assert len(list(tmp_path.glob("train-*"))) == 2


REFUSALS = rows(r"""
dangling_category.json | annotation 3944.*category 77
dup_image_id.json | image id 7
file_traversal.json | of id 7.*\.\./\.\./etc/passwd
size_wrong.json | image 7.*640x480.*480x640
bbox_nan.json | annotation 3944.*nan
no_annotations_key.json | --image_info_file
""")


@pytest.mark.parametrize(("name", "message"), REFUSALS)
def test_refusals_name_id_and_value(name, message, data_folder, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        convert(
            read_coco(object_annotations_file=str(data_folder / "malformed" / "annotations" / name)),
            settings(data_folder / "bccd" / "images", tmp_path / "train", max_bad_fraction=0.01),
        )
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["no_annotations_key.json", "annotations_empty.json"])
def test_images_without_annotations_are_legal_as_image_info(name, data_folder, tmp_path):
    data = read_coco(image_info_file=str(data_folder / "malformed" / "annotations" / name))
    report = convert(data, settings(data_folder / "bccd" / "images", tmp_path / "test"))
    assert (report.images, report.boxes, report.images_without_boxes) == (2, 0, 2)


def coco_of(folder, *, images, annotations, **settings):
    """Return the COCO data set of one class with these images and annotations."""
    content = {"categories": [{"id": 1, "name": "x"}], "images": images, "annotations": annotations}
    (folder / "a.json").write_text(json.dumps(content))
    return read_coco(object_annotations_file=str(folder / "a.json"), **settings)


BOX = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9]}


def test_size_disagreement_comes_before_damage(data_folder, tmp_path):
    image = {"id": 1, "file_name": "height_doubled.jpg", "width": 640, "height": 480}
    with pytest.raises(InputError, match=r"height_doubled.jpg \(image 1\): .*640x960.*640x480 in "):
        convert(
            coco_of(tmp_path, images=[image], annotations=[BOX]),
            settings(data_folder / "malformed", tmp_path / "train"),
        )


def test_what_is_no_file_is_skipped(tmp_path):
    (tmp_path / "images" / "folder.jpg").mkdir(parents=True)
    os.mkfifo(tmp_path / "images" / "pipe.jpg")
    for name, target in (("endless.jpg", "/dev/zero"), ("loop.jpg", "loop.jpg"), ("dangling.jpg", "nowhere.jpg")):
        (tmp_path / "images" / name).symlink_to(target)
    Image.new("RGB", (16, 16)).save(tmp_path / "images" / "good.jpg")
    names = ["good.jpg", "folder.jpg", "pipe.jpg", "endless.jpg", "loop.jpg", "dangling.jpg"]
    images = [{"id": number, "file_name": name} for number, name in enumerate(names, start=1)]
    report = convert(
        coco_of(tmp_path, images=images, annotations=[BOX]), settings(tmp_path / "images", tmp_path / "train")
    )
    assert report.images == 1
    reasons = {finding.file: finding.reason for finding in report.skipped}
    assert list(reasons) == ["pipe.jpg", "loop.jpg", "folder.jpg", "endless.jpg", "dangling.jpg"]  # two shards
    for name, reason in (("pipe", "it is a named pipe"), ("folder", "it is a folder"), ("endless", "it is a device")):
        assert reason in reasons[f"{name}.jpg"]


@pytest.mark.parametrize("segmentation", [[[0, 0, 1e10, 0, 9, 9]], "text", {"size": [16, 16], "counts": [-1, 257]}])
def test_masks_that_would_end_the_process_cost_their_box(segmentation, tmp_path):
    Image.new("RGB", (16, 16)).save(tmp_path / "a.jpg")
    annotations = [{**BOX, "segmentation": segmentation}, {**BOX, "id": 2, "segmentation": [[0, 0, 9, 0, 9, 9]]}]
    image = {"id": 1, "file_name": "a.jpg", "width": 16, "height": 16}
    data = coco_of(tmp_path, images=[image], annotations=annotations, with_segmentation=True)
    report = convert(data, dataclasses.replace(settings(tmp_path, tmp_path / "train"), include_masks=True))
    assert [finding.annotation_id for finding in report.skipped] == [1]
    assert "segmentation" in report.skipped[0].reason
    assert report.boxes == 1
