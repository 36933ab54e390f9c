"""Exported files that are damaged, are of a user else, or say what is not so: one line, and no wait."""

import json
import os

import numpy as np
import onnx
import pytest
from color_artifact import write_color_artifact

import efficientdet
from efficientdet.checkpoints.description import Description
from efficientdet.exports.export_artifacts import Artifact, ArtifactTable
from efficientdet.exports.exported_file import DESCRIPTION, INPUT, VERSION
from program_support.errors import InputError

IMAGE = np.full((40, 60, 3), 200, np.uint8)


@pytest.fixture
def changed(tmp_path):
    """Writes a file that detects, with other metadata."""
    model = onnx.load(write_color_artifact(tmp_path / "plain.onnx"))
    said = {prop.key: prop.value for prop in model.metadata_props}

    def write(name, text=None, **values):
        props = {**said, name: json.dumps({**json.loads(said[name]), **values}) if text is None else text}
        props = {key: value for key, value in props.items() if value}
        del model.metadata_props[:]
        onnx.helper.set_model_props(model, props)
        onnx.save(model, tmp_path / "changed.onnx")
        return tmp_path / "changed.onnx"

    return write


def test_the_file_detects_as_it_is(changed):
    assert len(efficientdet.load_detector(changed(INPUT)).predict(IMAGE)[0]) == 3


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (VERSION, {"text": "3"}, "has version 3 of the metadata; expected at most 2"),
        (INPUT, {"text": ""}, r"no efficientdet.input\); use export.py"),
        (INPUT, {"kind": "zoom"}, "resize rule 'zoom'; expected one of letterbox, stretch, fit"),
        (INPUT, {"text": '{"kind": "fit", "size": [9]}'}, "expected all above zero"),
        (INPUT, {"text": "[]"}, "a resize rule is"),
        (INPUT, {"size": [10**6, 10**6]}, r"size .1000000, 1000000.*of two sides at most 16384"),
        (DESCRIPTION, {"text": "{}"}, "the metadata is damaged"),
        (DESCRIPTION, {"text": "not json"}, "the metadata is damaged"),
        (DESCRIPTION, {"hparams": [1]}, r"damaged \(hparams is \[1\]; expected dict\)"),
        (
            DESCRIPTION,
            {"score_thresholds": {"overall": 2, "classes": {}}},
            r"damaged \(score_thresholds is .*; expected overall",
        ),
        (
            DESCRIPTION,
            {"score_thresholds": {"overall": 0.5}},
            r"damaged \(score_thresholds is .*; expected overall and classes",
        ),
        (
            DESCRIPTION,
            {"score_thresholds": {"overall": 0.5, "classes": {"red": "x"}}},
            r"damaged \(score_thresholds is .*, scores from 0 to 1",
        ),
        (DESCRIPTION, {"hparams": None}, r"damaged \(hparams is None; expected dict\)"),
        (DESCRIPTION, {"model_name": 5}, r"damaged \(model_name is 5; expected str\)"),
        (DESCRIPTION, {"text": "[" * 100_000}, "the metadata is damaged"),
    ],
)
def test_metadata_of_other_kinds_is_one_line(changed, name, values, message):
    with pytest.raises(InputError, match=message) as caught:
        efficientdet.load_detector(changed(name, **values))
    assert "\n" not in str(caught.value)


def test_what_predict_returns_by_default(tmp_path):
    """Scores are the color's shares, 0.8, 0.5 and 0.2, of the classes red, broken and blue; none is in the first."""
    image = np.full((40, 60, 3), (204, 127, 51), np.uint8)
    names = {
        name: efficientdet.load_detector(write_color_artifact(tmp_path / f"{name}.onnx", stored))
        for name, stored in (
            ("none", {}),
            ("one", {"overall": 0.1, "classes": {}}),
            ("classes", {"overall": 0.1, "classes": {"red": 0.9, "blue & co": 0.2}}),
        )
    }
    assert [str(detector.thresholds) for detector in names.values()] == [
        "0.4, the default, as the model stores none",
        "0.1, the best F1 on the validation data, stored with the model",
        "0.1 (0.2 to 0.9 by class), the best F1 on the validation data, stored with the model",
    ]
    assert [len(detector.predict(image)[0]) for detector in names.values()] == [2, 3, 2]
    assert [len(detector.predict(image, min_score=0.7)[0]) for detector in names.values()] == [1, 1, 1]


@pytest.mark.parametrize("images", [[IMAGE], [IMAGE, IMAGE]])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_an_input_that_is_not_the_networks(changed, runtime, images):
    path = changed(INPUT, size=[32, 32])
    with pytest.raises(InputError, match=rf"changed\.onnx: {runtime} cannot run it \(.*32") as caught:
        efficientdet.load_detector(path, runtime=runtime, batch_size=2).predict(images)
    assert "\n" not in str(caught.value)


def test_classes_that_it_does_not_name(changed):
    path = changed(DESCRIPTION, categories=[{"id": 3, "name": "red"}])
    with pytest.raises(InputError, match=r"changed\.onnx: returns classes 0 to 2; expected 0 to 0"):
        efficientdet.load_detector(path).predict(IMAGE)


def test_boxes_that_are_not_finite_are_left_out(changed):
    model = onnx.load(changed(INPUT))
    [shares] = [tensor for tensor in model.graph.initializer if tensor.name == "shares"]
    values = np.array(onnx.numpy_helper.to_array(shares))
    values[1, 2], values[2] = np.nan, (-np.inf, 0, 0, np.inf)
    shares.CopyFrom(onnx.numpy_helper.from_array(values, "shares"))
    onnx.save(model, path := changed(INPUT).with_name("broken.onnx"))
    [found] = efficientdet.load_detector(path).predict(IMAGE)
    assert (found.names, found.boxes.tolist()) == (("red",), [[0, 0, 30, 20]])


@pytest.mark.parametrize("name", ["artifacts.json", "README.md"])
def test_a_table_that_cannot_be_written_is_one_line(tmp_path, name):
    (tmp_path / name).mkdir()
    names = ("megabytes", "median_ms", "compared", "agreement", "score_difference")
    row = Artifact(format="onnx", file="detector.onnx", **dict.fromkeys(names, 0))
    table = ArtifactTable(
        model="d0",
        machine="none",
        versions={},
        compared_in="",
        checkpoint=None,
        validation_images=0,
        calibration_images=0,
        artifacts=[row],
    )
    description = Description(model_name="d0", hparams={"image_size": 64}, categories=[], weights="raw")
    with pytest.raises(InputError, match=rf"{name}: cannot be written \(Is a directory\)"):
        table.write(str(tmp_path), description)


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".tflite"])
def test_a_pipe_is_not_waited_for(tmp_path, suffix):
    path = tmp_path / f"pipe{suffix}"
    os.mkfifo(path)
    with pytest.raises(InputError, match=r"cannot be read .it is a named pipe"):
        efficientdet.load_detector(path)
