"""FiftyOne's exports, by its documentation (https://docs.voxel51.com/user_guide/export_datasets.html) and exporters."""

import json

import pytest
from label_sets import NAMES, PICTURES, draw, read_parts, write, write_fiftyone
from PIL import Image

from dataset import create_tfrecord
from dataset.conversion.conversion_options import ConvertOptions
from dataset.conversion.format_recognition import recognize
from dataset.files.file_kinds import format_of_file
from program_support.errors import InputError

BOX = [0.25, 0.125, 0.5, 0.25]  # of an image of 64x48: 16, 6, 32 and 12 pixels


@pytest.fixture
def photo(tmp_path):
    (tmp_path / "data").mkdir()
    Image.new("RGB", (64, 48)).save(tmp_path / "data" / "a.jpg")
    return tmp_path


def detection(label="nut", **others):
    return {"_cls": "Detection", "label": label, "bounding_box": BOX, **others}


def sample(name="a.jpg", tags=(), **fields):
    return {
        "filepath": f"data/{name}",
        "tags": [*tags],
        **{field: found and {"_cls": "Detections", "detections": found} for field, found in fields.items()},
    }


def read(folder, content, name="samples.json", **settings):
    write(folder / name, json.dumps(content))
    assert recognize(str(folder)).format.name == "fiftyone"
    return read_parts(folder, folder, **settings)


def objects(data):
    names = dict(zip(data.class_names.category_ids, data.class_names.names, strict=True))
    return {image.file_name: [(names[one.category_id], one.box_xywh) for one in image.objects] for image in data.images}


def labels_json(folder, *, with_classes):
    """The samples of samples.json as FiftyOneImageDetectionDataset stores them."""
    samples = json.loads((folder / "samples.json").read_text())["samples"]
    labels = {
        one["filepath"].removeprefix("data/").removesuffix(".jpg"): [
            {
                "label": NAMES.index(found["label"]) if with_classes else found["label"],
                "bounding_box": found["bounding_box"],
                "attributes": {"area": 7.5, "iscrowd": 0},
            }
            for found in one["ground_truth"]["detections"]
        ]
        for one in samples
    }
    return {"classes": [*NAMES, "spring"] if with_classes else None, "labels": labels}


@pytest.mark.parametrize("with_classes", [True, False])
def test_both_exports_have_the_same_labels(tmp_path, with_classes):
    draw(PICTURES, tmp_path / "data")
    write_fiftyone(PICTURES, tmp_path / "samples.json")
    content = labels_json(tmp_path, with_classes=with_classes)
    [first] = read(tmp_path, json.loads((tmp_path / "samples.json").read_text())).values()
    (tmp_path / "samples.json").unlink()
    [second] = read(tmp_path, content, "labels.json").values()
    assert objects(first) == objects(second)
    assert second.class_names.names == ("bolt", "nut", *(["spring"] if with_classes else []), "washer")
    assert not second.noted  # the names without suffix are the format's


def test_unlabeled_samples_are_not_empty_images(photo):
    for name in ("b.jpg", "c.jpg"):
        Image.new("RGB", (64, 48)).save(photo / "data" / name)
    [data] = read(photo, {"classes": None, "labels": {"a": [detection()], "b": [], "c": None}}, "labels.json").values()
    assert objects(data) == {"data/a.jpg": [("nut", (16, 6, 32, 12))], "data/b.jpg": []}
    assert [one.reason for one in data.noted] == ["1 of 3 samples are not labeled: not used"]
    with pytest.raises(InputError, match=r"none of its 1 samples is labeled"):
        read(photo, {"classes": None, "labels": {"a": None}}, "labels.json")


def test_the_field_with_the_labels(photo):
    """Predictions beside the ground truth are not trained on; two other fields need a choice."""
    other = [detection("bolt", confidence=0.5)]
    [data] = read(photo, {"samples": [sample(ground_truth=[detection()], model=other)]}).values()
    assert (objects(data), data.noted) == ({"data/a.jpg": [("nut", (16, 6, 32, 12))]}, [])
    with pytest.raises(InputError, match="none of its 1 samples is labeled"):
        read(photo, {"samples": [sample(ground_truth=None, model=other)]})
    [data] = read(photo, {"samples": [sample(model=other)]}).values()
    assert [one.reason for one in data.noted] == [
        "the labels are those of the field 'model'",
        "1 boxes have a confidence, as those of a model: used as labels",
    ]
    with pytest.raises(InputError, match=r"the fields 'a', 'b' have detections; expected those of ground_truth or of"):
        read(photo, {"samples": [sample(a=other, b=other)]})
    with pytest.raises(InputError, match=r"has no detections; expected"):
        read(photo, {"samples": [{**sample(), "ground_truth": {"_cls": "Classification", "label": "nut"}}]})


def test_tags_are_splits(tmp_path):
    draw(PICTURES, tmp_path / "data")
    tags = (["train", "night"], ["train"], ["validation"], ["test"])
    content = [sample(one.name, tag, ground_truth=[detection()]) for one, tag in zip(PICTURES, tags, strict=True)]
    splits = read(tmp_path, {"samples": content})
    assert {split: [image.file_name for image in data.images] for split, data in splits.items()} == {
        "train": ["data/a.jpg", "data/b.jpg"],
        "val": ["data/c.jpg"],
        "test": ["data/d.jpg"],
    }
    content[0]["tags"] = ["train", "test"]
    splits = read(tmp_path, {"samples": content})
    assert "has the tags ['train', 'test'], expected one of" in splits["train"].skipped[0].reason


def test_folders_of_single_exports_are_splits(tmp_path):
    for split, picture in (("train", PICTURES[0]), ("validation", PICTURES[1])):
        draw([picture._replace(name="0.jpg")], tmp_path / split / "data")
        content = {"classes": ["nut"], "labels": {"0": [{"label": 0, "bounding_box": BOX}]}}
        splits = read(tmp_path, content, f"{split}/labels.json")
    assert {split: [image.file_name for image in data.images] for split, data in splits.items()} == {
        "train": ["train/data/0.jpg"],
        "val": ["validation/data/0.jpg"],
    }


@pytest.mark.parametrize(
    "flags",
    [
        {"iscrowd": 1, "difficult": "1"},
        {"attributes": {"iscrowd": 1.0, "difficult": True}},
        {"attributes": {name: {"_cls": "NumericAttribute", "value": 1.0} for name in ("iscrowd", "difficult")}},
    ],
)
def test_crowds_and_difficult_objects(photo, flags):
    [data] = read(photo, {"samples": [sample(ground_truth=[detection(**flags), detection()])]}).values()
    assert sorted((one.is_crowd, one.is_difficult) for one in data.images[0].objects) == [(False, False), (True, True)]


def test_one_odd_detection_refuses_nothing(photo):
    odd = [
        (7, "is 7, expected an object"),
        (detection(label=0), "has label 0, expected text or the number of one of 0 classes"),
        (detection(label=None), "has label None, expected a number"),
        (detection(label=" "), "has no class name"),
        (detection(bounding_box=[16, 6, 32, 12]), "expected x, y, width and height as fractions"),
        (detection(bounding_box=[0, 0, float("nan"), 1]), "in bounding_box nan, expected a finite number"),
        (detection(bounding_box="0123"), "expected a list of 4 numbers"),
        (detection(iscrowd=[1]), r"has iscrowd [1], expected 1, true or yes"),
    ]
    [data] = read(photo, {"samples": [sample(ground_truth=[detection(), *(one for one, _ in odd)])]}).values()
    assert objects(data) == {"data/a.jpg": [("nut", (16, 6, 32, 12))]}
    for entry, (_, reason) in zip(data.skipped, odd, strict=True):
        assert reason in entry.reason
    assert data.images[0].refused == len(odd)


def test_an_export_becomes_records(photo):
    """With the other files of an export beside it, and paths of another machine."""
    write(photo / "metadata.json", json.dumps({"name": "x", "tags": [], "classes": {}, "sample_fields": []}))
    write(photo / "brain" / "near.json", json.dumps({"_cls": "x"}))
    write(
        photo / "samples.json",
        json.dumps({"samples": [{**sample(ground_truth=[detection()]), "filepath": "/home/me/data/a.jpg"}]}),
    )
    options = ConvertOptions(images=str(photo), output_dir=str(photo / "records"), val_fraction=0.0)
    create_tfrecord.convert_labels(options)
    [image] = json.loads((photo / "records" / "train.instances.json").read_text())["images"]
    assert image["file_name"] == "data/a.jpg"


def test_a_file_too_large_to_parse_is_recognized(tmp_path, monkeypatch):
    monkeypatch.setattr("dataset.files.file_kinds._MOST_PARSED_BYTES", 1)
    write_fiftyone(PICTURES * 100, tmp_path / "samples.json")
    assert (tmp_path / "samples.json").stat().st_size > 1 << 16
    assert format_of_file(tmp_path / "samples.json") == "fiftyone"
