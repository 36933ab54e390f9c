"""Comparison of detectors on the same images, by their detections in COCO's results format."""

import json
from pathlib import Path

import pytest
from drawn_records import draw_records

import efficientdet
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


@pytest.mark.parametrize(
    ("change", "flags", "message"),
    [
        (lambda found: [{**entry, "image_id": 987654} for entry in found], {}, "of images that the data does not have"),
        (lambda found: [{**entry, "category_id": 77} for entry in found], {}, "category ids that the data does not"),
        (lambda found: found, {"eval_samples": 1}, "needs at least two images, since one has no spread; found 1"),
        (
            lambda found: found,
            {"models": ["a.json"]},
            "two or more detectors, such as compare.py A B; found 1",
        ),
        (lambda found: found, {"models": ["a.json", "nosuch.json"]}, "nosuch.json: there is no such file"),
    ],
)
def test_what_cannot_be_compared_is_one_line(drawn, tmp_path, monkeypatch, change, flags, message):
    monkeypatch.chdir(tmp_path)
    written(Path("a.json"), results(drawn))
    written(Path("b.json"), change(results(drawn)))
    arguments = {"models": ["a.json", "b.json"], "bootstrap": 10, **flags}
    with pytest.raises(InputError, match=message) as error:
        efficientdet.compare(arguments.pop("models"), drawn.folder, output_dir="out", **arguments)
    assert "\n" not in str(error.value)


def test_images_without_objects_are_one_line(drawn, tmp_path):
    truth = json.loads(Path(drawn.annotations("val")).read_text())
    empty = written(tmp_path / "truth.json", {**truth, "annotations": []})
    both = [written(tmp_path / name, results(drawn)) for name in ("a.json", "b.json")]
    with pytest.raises(InputError, match="no object in 6 images"):
        efficientdet.compare(both, drawn.folder, output_dir=tmp_path / "out", val_json_file=empty)
