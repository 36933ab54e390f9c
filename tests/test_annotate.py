"""infer.py's work with a detector that finds whatever is white."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from dataset.class_names import ClassNames
from efficientdet.checkpoints.stored_thresholds import ScoreThresholds
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.inference.detect import Detector
from efficientdet.prediction import image_annotation as annotate_module
from efficientdet.prediction.annotate import AnnotationConfig, annotate
from efficientdet.prediction.inputs import Inputs
from efficientdet.reports.drawing import class_color
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import decoded, run_lengths
from program_support.errors import InputError

TOP, LEFT, BOTTOM, RIGHT = 24, 100, 48, 172  # of the white patch in the 96 x 192 stored pixels
STORED = np.full((96, 192, 3), 60, np.uint8)
STORED[TOP:BOTTOM, LEFT:RIGHT] = 255


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder, and a detector that answers with the bounds of the white pixels."""

    def detect(images):
        found = []
        for image in images:
            rows, columns = np.nonzero(image.min(axis=-1) > 240)
            box = [[rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]]
            found.append(DetectionRows.of_image(np.float32(box), np.float32([0.9]), np.array([8])))
        return found

    monkeypatch.setattr(
        annotate_module,
        "open_model",
        lambda config, **_: Detector(detect, ClassNames((3, 8), ("cat", "dog")), ScoreThresholds()),
    )
    return tmp_path


def test_masks_are_drawn_where_the_object_is_and_written_as_run_lengths(place, monkeypatch):
    def detect(images):
        found = []
        for image in images:
            mask = image.min(axis=-1) > 240
            found.append(
                DetectionRows.of_image(
                    np.float32([[0, 0, *mask.shape]]), np.float32([0.9]), np.array([8]), masks=[run_lengths(mask)]
                )
            )
        return found

    monkeypatch.setattr(
        annotate_module,
        "open_model",
        lambda config, **_: Detector(detect, ClassNames((3, 8), ("cat", "dog")), ScoreThresholds()),
    )
    run(place, save(place / "a.jpg"))
    [result] = results(place)
    wanted = np.zeros(STORED.shape[:2], bool)
    wanted[TOP:BOTTOM, LEFT:RIGHT] = True
    np.testing.assert_array_equal(decoded(result["segmentation"]), wanted)
    with Image.open(place / "out" / "a.jpg") as drawing:
        inside = np.asarray(drawing)[TOP + 3 : BOTTOM - 3, LEFT + 3 : RIGHT - 3].astype(float)
    tinted = 255 + 0.45 * (np.array(class_color(1)) - 255)
    assert np.abs(np.median(inside, axis=(0, 1)) - tinted).max() < 8


def save(path, *, orientation=1, stored=STORED):
    """A JPEG without chroma subsampling, so that the patch keeps its edges."""
    path.parent.mkdir(exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(stored).save(path, "JPEG", quality=100, subsampling=0, exif=exif)
    return path


def run(place, *images, **settings):
    (place / "out").mkdir(exist_ok=True)
    annotate(
        AnnotationConfig(
            inputs=Inputs(images=tuple(map(str, images))),
            output_dir=str(place / "out"),
            model_config=ModelConfig(ckpt_path="none"),
            **settings,
        )
    )


def results(place):
    return json.loads((place / "out" / "detections.json").read_text())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_those_of_the_upright_image(place, orientation):
    source = save(place / "a.jpg", orientation=orientation)
    run(place, source)
    with Image.open(source) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    rows, columns = np.nonzero(upright.min(axis=-1) > 240)
    x, y = columns.min(), rows.min()
    [result] = results(place)
    assert result["bbox"] == [x, y, columns.max() + 1 - x, rows.max() + 1 - y]
    with Image.open(place / "out" / "a.jpg") as drawing:
        framed = np.abs(np.asarray(drawing).astype(int) - upright).max(axis=-1) > 80
    assert framed[rows.min() : rows.max() + 1, [x, columns.max()]].all()
    assert framed[[y, rows.max()], x : columns.max() + 1].all()
    with Image.open(place / "out" / "a.jpg") as drawing:
        assert drawing.size == upright.shape[1::-1]
        assert drawing.getexif().get(0x0112, 1) == 1


def test_what_cannot_be_decoded_is_told_and_the_rest_is_done(place, capsys):
    whole = save(place / "whole.jpg")
    for name in ("cut1.jpg", "cut2.jpg"):
        (place / name).write_bytes(whole.read_bytes()[:400])
    with pytest.raises(InputError, match=r"^2 of 4 images could not be decoded; the first: .*cut1\.jpg: cannot be"):
        run(place, place / "cut1.jpg", whole, place / "cut2.jpg", save(place / "b.jpg"), batch_size=2)
    assert sorted(path.name for path in (place / "out").glob("[!.]*")) == ["b.jpg", "detections.json", "whole.jpg"]
    assert {result["file_name"] for result in results(place)} == {"whole.jpg", "b.jpg"}
    assert capsys.readouterr().out.count("skipped: ") == 2


def test_while_the_network_runs_the_next_image_is_decoded_and_the_last_one_written(place, monkeypatch):
    images = [save(place / name) for name in ("a.jpg", "b.jpg", "c.jpg")]
    read, found = {path.name: threading.Event() for path in images}, []

    def read_input(path, **options):
        read[Path(path).name].set()
        return read_image(path, **options)

    def detect(pixels):
        number = len(found)
        if number < 2:
            assert read[images[number + 1].name].wait(20)
        found.append(number)
        deadline = time.monotonic() + 20
        while number and not (place / "out" / images[number - 1].name).exists():
            assert time.monotonic() < deadline
        return [DetectionRows.of_image(np.float32([[0, 0, 9, number + 9]]), np.float32([0.9]), np.array([8]))]

    read_image = annotate_module.read_input
    monkeypatch.setattr(annotate_module, "read_input", read_input)
    model = Detector(detect, ClassNames((3, 8), ("cat", "dog")), ScoreThresholds())
    monkeypatch.setattr(annotate_module, "open_model", lambda config, **_: model)
    run(place, *images)
    assert [(result["file_name"], result["bbox"][2]) for result in results(place)] == [
        ("a.jpg", 9),
        ("b.jpg", 10),
        ("c.jpg", 11),
    ]


def test_an_image_too_wide_for_a_jpeg_is_told(place):
    Image.new("RGB", (65_501, 2)).save(place / "wide.png")
    with pytest.raises(
        InputError, match=r"wide\.png: cannot be saved \(it has a side of 65501 pixels, a JPEG 65500 at most\)"
    ):
        run(place, place / "wide.png")


def test_images_of_one_name_are_kept_apart(place):
    images = [save(place / name) for name in ("a/x.jpg", "b/x.jpg", "b/x.png", "b/X.jpg")]
    run(place, *images)
    assert sorted(path.name for path in (place / "out").glob("*.jpg")) == ["X-4.jpg", "x-2.jpg", "x-3.jpg", "x.jpg"]
    assert [(result["image_id"], result["file_name"]) for result in results(place)] == [
        (1, str(images[0])),
        (2, str(images[1])),
        (3, "x.png"),
        (4, "X.jpg"),
    ]


def test_a_drawing_never_replaces_an_image(place):
    image = save(place / "out" / "a.jpg")
    before = image.read_bytes()
    with pytest.raises(InputError, match=r"out: the output a\.jpg would overwrite the image .*expected another folder"):
        run(place, image)
    assert image.read_bytes() == before


def test_a_drawing_that_cannot_be_written_is_one_line(place):
    run(place, save(place / "in" / "a.jpg"))
    (place / "out" / "a.jpg").unlink()
    (place / "out" / "a.jpg").mkdir()
    with pytest.raises(InputError, match=r"out/a\.jpg: cannot be written \(Is a directory\)"):
        run(place, save(place / "in" / "a.jpg"))


def test_yolo_labels_of_an_earlier_run_with_other_classes_go(place, monkeypatch, capsys):
    """They are numbers of classes.txt, which is replaced."""
    first, second = save(place / "a.jpg"), save(place / "b.jpg")
    run(place, first, format=("yolo",))
    run(place, second, format=("yolo",))
    labels = place / "out" / "yolo" / "labels"
    assert {path.name for path in labels.iterdir()} == {"a.txt", "b.txt"}
    model = annotate_module.open_model(None)
    others = Detector(model.detect, ClassNames((3, 8), ("cow", "cat")), ScoreThresholds())
    monkeypatch.setattr(annotate_module, "open_model", lambda config, **_: others)
    run(place, second, format=("yolo",))
    assert [path.name for path in labels.iterdir()] == ["b.txt"]
    assert "2 files of an earlier run with other classes are removed" in capsys.readouterr().out
