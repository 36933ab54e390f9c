"""Input and output of infer.py: odd inputs, every format with the same boxes, crops, names valid on file systems."""

import csv
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO

from dataset.class_names import ClassNames
from dataset.conversion.folder_files import ImageFolder
from dataset.conversion.formats.csv_boxes import read_csv_boxes
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.exports.formats import format_of
from efficientdet.inference.detect import Detector
from efficientdet.inference.result_files import FORMATS, ResultFiles, chosen_formats
from efficientdet.plugins.streams import video, video_source
from efficientdet.prediction import image_annotation as annotate_module
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs, find_inputs
from object_detection.coco.results import DetectionRows, results_json
from program_support.errors import InputError

NAMES = ClassNames((3, 8), ("cat", "../../x"))
BOXES = np.float32([[4.5, 10, 20, 30.25], [-3, -2, 9, 9], [0, 0, 5, 5]])  # y_min, x_min, y_max, x_max


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a/1.png and b/1.png, and a detector that finds three boxes in every image, the last a guess."""
    rows = DetectionRows.of_image(BOXES, np.float32([0.9, 0.8, 0.1]), np.array([8, 3, 3]))
    monkeypatch.setattr(
        annotate_module,
        "open_model",
        lambda config, **_: Detector(lambda images: [rows] * len(images), NAMES, ScoreThresholds()),
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((24, 40, 3), 90, np.uint8)).save(tmp_path / name / "1.png")
    return tmp_path


def run(place, images, **settings):
    (place / "out").mkdir(exist_ok=True)
    annotate(AnnotationConfig(inputs=Inputs(images=tuple(map(str, images))), output_dir=str(place / "out"), **settings))


def test_every_format_has_the_boxes_of_the_results(place):
    images = [place / "a" / "1.png", place / "b" / "1.png"]
    run(place, images, format=FORMATS)
    out = place / "out"
    results = [result for result in json.loads((out / "detections.json").read_text()) if result["score"] > 0.4]
    assert [result.pop("file_name") for result in results] == [str(image) for image in images for _ in range(2)]
    assert [result["bbox"] for result in results[:2]] == [[10, 4.5, 20.25, 15.5], [-2, -3, 11, 12]]
    coco = COCO(out / "coco.json")
    assert [{key: found[key] for key in results[0]} for found in coco.dataset["annotations"]] == results
    assert [image["file_name"] for image in coco.dataset["images"]] == [str(image) for image in images]
    assert len(coco.loadRes(str(out / "detections.json")).anns) == 6
    with (out / "detections.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [[float(row[side]) for side in ("xmin", "ymin", "xmax", "ymax", "score")] for row in rows[:2]] == [
        [10, 4.5, 30.25, 20, 0.9],
        [-2, -3, 9, 9, 0.8],
    ]
    assert {(row["filename"], row["class"]) for row in rows} == {
        (str(image), name) for image in images for name in NAMES.names
    }
    task, _ = json.loads((out / "label_studio.json").read_text())
    [prediction] = task["predictions"]
    assert task["data"]["image"] == f"/data/local-files/?d={images[0]}"
    assert prediction["score"] == pytest.approx(0.85)
    percent = np.array(
        [[region["value"][key] for key in ("x", "y", "width", "height")] for region in prediction["result"]]
    )
    np.testing.assert_allclose(percent * (0.4, 0.24, 0.4, 0.24), [[10, 4.5, 20.25, 15.5], [-2, -3, 11, 12]], atol=1e-4)
    configuration = ElementTree.parse(out / "label_studio.xml")  # the names are escaped
    assert [label.get("value") for label in configuration.iter("Label")] == list(NAMES.names)
    assert (out / "yolo" / "classes.txt").read_text().splitlines() == list(NAMES.names)
    assert sorted(path.name for path in (out / "yolo" / "labels").iterdir()) == ["1-2.txt", "1.txt"]  # as the drawings
    labels = np.loadtxt(out / "yolo" / "labels" / "1-2.txt")
    assert labels[:, 0].tolist() == [1, 0]
    centers, sides = labels[:, 1:3] * (40, 24), labels[:, 3:5] * (40, 24)
    np.testing.assert_allclose(
        np.concatenate([centers - sides / 2, centers + sides / 2], axis=1)[:, [1, 0, 3, 2]], BOXES[:2], atol=1e-4
    )


def test_file_names_that_are_no_text(tmp_path):
    files = ResultFiles(str(tmp_path), NAMES, formats=("coco", "label_studio"))
    files.add("no", os.fsdecode(b"no\xfftext.jpg"), 1, size=(30, 40), results=[])
    files.write()
    [task] = json.loads((tmp_path / "label_studio.json").read_text())
    assert task["data"]["image"] == "/data/local-files/?d=no%FFtext.jpg"


def test_the_csv_is_one_that_a_training_takes(place):
    run(place, [place / "a" / "1.png"], format=("csv",))
    [image] = read_csv_boxes(
        str(place / "out" / "detections.csv"), ImageFolder(str(place / "a")), with_masks=False, split=None
    ).images
    assert image.size == (24, 40)
    assert [tracked.box_xywh for tracked in image.objects] == [(10, 4.5, 20.25, 15.5), (-2, -3, 11, 12)]


def test_a_terminal_obeys_no_file_name(place, capsys):
    broken = place / "a" / "evil\x1b[2J\u202e.png"
    broken.write_bytes(b"no image")
    with pytest.raises(InputError):
        run(place, [place / "a" / "1.png", broken])
    [line] = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert r"evil\x1b[2J\u202e.png: cannot be decoded" in line


def test_a_spreadsheet_computes_no_name(tmp_path):
    names = ("=cmd|'/C calc'!A0", "@a", "-1", "a=b", "+1")
    files = ResultFiles(str(tmp_path), ClassNames(tuple(range(5)), names), formats=("csv",))
    rows = DetectionRows.of_image(np.float32([[-2, -3, 9, 9]] * 5), np.full(5, 0.9, np.float32), np.arange(5))
    files.add("a", "=1+1.jpg", 1, size=(20, 20), results=results_json(rows))
    files.write()
    _, *found = csv.reader((tmp_path / "detections.csv").read_text().splitlines())
    assert [(row[0], row[3]) for row in found] == [
        ("'=1+1.jpg", "'=cmd|'/C calc'!A0"),
        ("'=1+1.jpg", "'@a"),
        ("'=1+1.jpg", "'-1"),
        ("'=1+1.jpg", "a=b"),
        ("'=1+1.jpg", "'+1"),
    ]
    assert [float(row[6]) for row in found] == [-3] * 5  # a number stays one


def test_unknown_formats_are_one_line():
    assert chosen_formats(["csv", "coco", "csv"]) == ("csv", "coco")
    with pytest.raises(
        InputError, match=r"'yolov' is unknown; expected any of coco, yolo, csv, label_studio; did you mean yolo"
    ):
        chosen_formats(["coco", "yolov"])


def test_an_image_on_the_standard_input(place, monkeypatch):
    encoded = (place / "a" / "1.png").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(encoded)))
    run(place, find_inputs(["-"]).images, format=("csv",))
    assert {path.name for path in (place / "out").glob("[!.]*")} == {"stdin_1.jpg", "detections.json", "detections.csv"}
    for content, reason in (
        (b"", "it is empty"),
        (b"no image", "in none of the formats"),
        (encoded[:60], "cannot be decoded"),
    ):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        with pytest.raises(
            InputError, match=f"none of 1 images could be decoded; the first: standard input: .*{reason}"
        ):
            run(place, ["-"])


def test_a_second_recording_of_a_camera_leaves_the_first(place, monkeypatch):
    def record(model, number, target, **_):
        target.write_text(f"recording {len(list((place / 'out').glob('*.mp4')))}")

    monkeypatch.setattr(video_source, "open_source", lambda number, *, live: SimpleNamespace(release=lambda: None))
    monkeypatch.setattr(video, "annotate_video", record)
    (place / "out").mkdir()
    for _ in range(3):
        annotate(AnnotationConfig(inputs=Inputs(camera=0), output_dir=str(place / "out")))
    assert {path.name: path.read_text() for path in (place / "out").glob("*.mp4")} == {
        "camera_0.mp4": "recording 0",
        "camera_0-2.mp4": "recording 1",
        "camera_0-3.mp4": "recording 2",
    }


def test_names_that_are_too_long_are_one_line():
    names = "\n".join(f"photo_{number}.jpg" for number in range(40))  # --image_path="$(ls)"
    with pytest.raises(InputError, match=r"(?s)--image_path=photo_0\.jpg.*: cannot be read \(File name too long\)"):
        find_inputs([names])
    assert format_of("a" * 300) is None
    with pytest.raises(InputError, match="is a camera, not a file"):
        find_inputs(["1" * 300])


def test_inputs_are_told_apart(place, monkeypatch):
    (place / "clip.MP4").touch()
    monkeypatch.chdir(place)
    assert find_inputs(["a", "clip.MP4", "b/*"]) == Inputs(("a/1.png", "b/1.png"), ("clip.MP4",))
    assert find_inputs(["0"]) == Inputs(camera=0)
    Path("0").touch()
    assert find_inputs(["0"]) == Inputs(("0",))
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where a shell closes it
    with pytest.raises(InputError, match="the standard input is closed; expected an image piped into it"):
        find_inputs(["-"])
    for names in (["1", "a"], ["a", "1"], ["1", "2"], ["123456"]):
        with pytest.raises(InputError, match="is a camera, not a file; expected a single camera"):
            find_inputs(names)
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    with pytest.raises(InputError, match="is a terminal; expected an image piped into it"):
        find_inputs(["-"])
