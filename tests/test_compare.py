"""Comparison of detectors on the same images, by their detections in COCO's results format."""

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records

import efficientdet
from dataset.class_names import ClassNames
from dataset.input.ground_truth import ground_truth_of_records
from dataset.records.record_index import index_records
from efficientdet.inference.detect import Detector
from efficientdet.operations import compare_models
from object_detection.coco.results import DetectionRows
from program_support.errors import InputError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"val": 6}, side=80)


def results(drawn):
    """What the annotations say."""
    annotations = json.loads(Path(drawn.annotations("val")).read_text())["annotations"]
    return [
        {**{key: entry[key] for key in ("image_id", "category_id", "bbox")}, "score": 0.9}
        for entry in annotations
        if not entry["iscrowd"]
    ]


def written(path, content):
    path.write_text(json.dumps(content))
    return path


def test_a_detector_that_misses_objects_is_worse(drawn, tmp_path, capsys):
    everything = results(drawn)
    perfect = written(tmp_path / "perfect.json", everything)
    half = written(tmp_path / "half.json", everything[::2])
    same = written(tmp_path / "same.json", everything)
    found = efficientdet.compare([perfect, half, same], drawn.folder, output_dir=tmp_path / "out", bootstrap=200)
    alone = efficientdet.evaluate(None, drawn.folder, results=half).numbers
    assert found.numbers[str(half)] == alone
    worse, equal = found.differences[f"{perfect} -> {half}"], found.differences[f"{perfect} -> {same}"]
    assert worse["AP"].value == pytest.approx(alone["AP"] - 1)
    assert worse["AP"].low < worse["AP"].value < worse["AP"].high < 0
    assert worse["AP"].probability == 0
    assert equal["AP"] == (0, 0, 0, 0.5)  # copies of one file: every resample is a tie
    assert worse["AP"].verdict == "worse"
    assert equal["AP"].verdict == "no difference shown"
    shown = json.loads(found.json.read_text())
    assert shown["differences"][0]["numbers"]["AP"]["low"] == worse["AP"].low
    classes = found.class_differences[f"{perfect} -> {half}"]
    assert set(classes) <= set(drawn.class_names.names)
    assert all(one["AP"].value <= 0 for one in classes.values() if one)
    page = found.page.read_text()
    assert "Images on which they differ most" in page
    assert page.count("data:image/jpeg") >= 1
    assert "no difference shown" in capsys.readouterr().out


def test_a_class_that_one_detector_lacks_is_left_out(drawn, tmp_path, monkeypatch, capsys):
    """Of two that find nothing else, the one that lacks a class is as good on the others."""
    names, paths = drawn.class_names.names, [tmp_path / "old.onnx", tmp_path / "new.onnx"]
    for path in paths:
        path.touch()

    def load(path):
        """The objects of one image after another, without the first class for the old detector, with other ids."""
        known = names[1:] if path == str(paths[0]) else names
        truth = ground_truth_of_records(index_records(drawn.records("val")), drawn.class_names)
        of_image = iter([image["id"] for image in truth["images"]])

        def detect(images):
            number = next(of_image)
            objects = [
                (box, known.index(name) + 1)
                for one in truth["annotations"]
                for name in [names[drawn.class_names.category_ids.index(one["category_id"])]]
                for box in [one["bbox"]]
                if one["image_id"] == number and name in known
            ]
            x, y, width, height = np.float32([box for box, _ in objects]).reshape(-1, 4).T
            return [
                DetectionRows(
                    image_ids=np.zeros(len(objects), np.int64),
                    boxes=np.stack([y, x, y + height, x + width], axis=1),
                    scores=np.full(len(objects), 0.9, np.float32),
                    category_ids=np.array([label for _, label in objects], np.int64),
                    evaluated_ids=np.zeros(1, np.int64),
                )
            ]

        return Detector(detect=detect, class_names=ClassNames(tuple(range(1, len(known) + 1)), known))

    monkeypatch.setattr(compare_models, "load_detector", load)
    with pytest.raises(InputError, match="its classes are"):
        efficientdet.compare(paths, drawn.folder, output_dir=tmp_path / "out", bootstrap=20)
    found = efficientdet.compare(paths, drawn.folder, output_dir=tmp_path / "out", bootstrap=20, common_classes=True)
    [pair] = found.differences.values()
    assert pair["AP"].value == 0
    [classes] = found.class_differences.values()
    assert names[0] not in classes
    assert set(classes) == set(names[1:])
    assert f"left out, because not all detectors have them: {names[0]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("models", "flags", "message"),
    [
        (["a.json", "a.json"], {"eval_samples": 1}, "needs at least two images, since one has no spread; found 1"),
        (["a.json"], {}, "two or more detectors, such as compare.py A B; found 1"),
        (["a.json", "nosuch.json"], {}, "nosuch.json: there is no such file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(drawn, tmp_path, monkeypatch, models, flags, message):
    monkeypatch.chdir(tmp_path)
    written(Path("a.json"), results(drawn))
    with pytest.raises(InputError, match=message) as error:
        efficientdet.compare(models, drawn.folder, output_dir="out", bootstrap=10, **flags)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (lambda image: None, {}, "no object in 6 images"),
        (lambda image: image if image % 2 == 0 else None, {"eval_samples": 3}, "no object in 3 images"),
        (lambda image: image + (image > 5), {}, "1 of the 6 images of the records are missing, such as id 6; expected"),
        (lambda image: image + 10, {}, "6 of the 6 images of the records are missing, such as id 1; expected"),
    ],
)
def test_other_ground_truth_is_one_line(drawn, tmp_path, change, flags, message):
    """`change`: new id of an image; None: its annotations are removed."""
    truth = json.loads(Path(drawn.annotations("val")).read_text())
    images = [{**image, "id": change(image["id"]) or image["id"]} for image in truth["images"]]
    annotations = [
        {**one, "image_id": change(one["image_id"])} for one in truth["annotations"] if change(one["image_id"])
    ]
    other = written(tmp_path / "truth.json", {**truth, "images": images, "annotations": annotations})
    both = [written(tmp_path / name, results(drawn)) for name in ("a.json", "b.json")]
    with pytest.raises(InputError, match=f"{other}: {message}") as error:
        efficientdet.compare(both, drawn.folder, output_dir=tmp_path / "out", val_json_file=other, **flags)
    assert "\n" not in str(error.value)


def test_detections_of_few_images_and_of_one_class_are_compared(drawn, tmp_path, capsys):
    everything = results(drawn)
    first = everything[0]["category_id"]
    paths = [
        written(tmp_path / "all.json", everything),
        written(tmp_path / "few.json", [one for one in everything if one["image_id"] > 2]),
        written(tmp_path / "class.json", [one for one in everything if one["category_id"] == first]),
    ]
    of_records = efficientdet.compare(paths, drawn.folder, output_dir=tmp_path / "records", bootstrap=20)
    assert all(pair["AP"].value < 0 for pair in of_records.differences.values())
    of_class = of_records.class_differences[f"{paths[0]} -> {paths[2]}"]
    name = drawn.class_names.names[drawn.class_names.category_ids.index(first)]
    assert of_class[name]["AP"] == (0, 0, 0, 0.5)
    out = capsys.readouterr().out
    assert f"{paths[1]}: no detection in 2 of 6 images; were they evaluated?" in out
    assert f"{paths[0]}: no detection" not in out
