"""Exported ONNX files: they find what the checkpoint finds, without TensorFlow, and say what is wrong with other files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from miniature import build_miniature
from stored_miniature import store_miniature

import efficientdet
from dataset.input.resize import FitWithin, Letterbox, Stretch, host_resize
from efficientdet.benchmark.artefacts import ExportConfig, export_artefacts
from efficientdet.checkpoints import restore
from efficientdet.export.artefact_metadata import read_artefact
from efficientdet.inference.opening import ModelConfig
from object_detection.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("rule", [
    Letterbox((64, 96)), Letterbox((64, 96), half_pixel_centres=False), Letterbox((64, 96), antialias=True), Stretch((50, 31)),
    Stretch((50, 31), antialias=True), FitWithin(40, 70)], ids=str)
@pytest.mark.parametrize("size", [(48, 64), (7, 5), (123, 311), (300, 20), (64, 96)])
def test_pixels_are_those_of_tensorflow(rule, size):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    wanted = [np.asarray(part) for part in rule(image)]
    found = host_resize(rule)(image)
    assert [part.dtype for part in found] == [np.uint8, np.int32, np.float32]
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(found[2], wanted[2])
    difference = np.abs(found[0].astype(int) - wanted[0])
    assert difference.max() <= 1  # where a half is rounded
    assert difference.mean() < 1e-3


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with what export.py wrote of a miniature, and images of several sizes."""
    folder = tmp_path_factory.mktemp("exported")
    images = store_miniature(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", build_miniature)
        export_artefacts(
            ModelConfig(ckpt_path=f"{folder}/ckpt", model_name="efficientdet-d0", model_name_given=False, overrides={}),
            ExportConfig(output_dir=str(folder), formats=("onnx", "onnx-raw"), images=tuple(map(str, images)), runs=2))
        yield folder, images


def test_the_table(exported):
    folder, _ = exported
    table = json.loads((folder / "artefacts.json").read_text())["artefacts"]
    assert [(line["format"], line["agreement"]) for line in table] == [("onnx", 1.0), ("onnx-raw", 1.0)]
    assert all(line["compared"] == 60 and line["score_difference"] < 1e-5 and line["p99_ms"] >= line["median_ms"] > 0
               for line in table)
    assert "| onnx | detector.onnx | " in (folder / "artefacts.md").read_text()


def test_the_file_finds_what_the_checkpoint_finds(exported):
    folder, images = exported
    ours = efficientdet.load_detector(folder / "detector.onnx", batch_size=2).predict(images, min_score=0)
    theirs = efficientdet.load_detector(folder / "ckpt", precision="float32").predict(images, min_score=0)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-2)
        np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)
        assert found.names == wanted.names
        assert len(found) == 20


def test_neither_tensorflow_nor_keras_is_imported(exported):
    folder, images = exported
    program = f"""
import sys
import efficientdet
found = efficientdet.load_detector({str(folder / "detector.onnx")!r}).predict({str(images[0])!r}, min_score=0)
print(len(found[0]), sorted({{"tensorflow", "keras", "jax", "onnx"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "20 []\n", done.stderr


def test_infer_draws_by_the_file_alone(exported, tmp_path):
    folder, images = exported
    done = subprocess.run(
        [sys.executable, ROOT / "infer.py", f"--model={folder / 'detector.onnx'}", f"--image_path={images[0]}",
         f"--output_dir={tmp_path}", "--min_score_thresh=0.001"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([images[0].name, "detections.json"])
    assert len(json.loads((tmp_path / "detections.json").read_text())) == 20


def test_tiles_of_the_standard_input_take_neither_tensorflow_nor_keras(exported, tmp_path):
    folder, images = exported
    for package in ("tensorflow", "keras"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('wanted after all')")
    with open(images[0], "rb") as image:
        done = subprocess.run(
            [sys.executable, ROOT / "infer.py", f"--model={folder / 'detector.onnx'}", "--image_path=-", "--tile=64",
             f"--output_dir={tmp_path / 'out'}", "--min_score_thresh=0", "--format=csv", "--save_crops"], stdin=image,
            capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert len(results) > 20  # of five looks at it
    assert len((tmp_path / "out" / "detections.csv").read_text().splitlines()) == len(results) + 1
    assert len(list((tmp_path / "out" / "crops").glob("*/stdin_1_*.jpg"))) == len(results)


def changed(folder, tmp_path, **props):
    model = onnx.load(folder / "detector.onnx")
    kept = {prop.key: prop.value for prop in model.metadata_props} | props
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {key: value for key, value in kept.items() if value is not None})
    onnx.save(model, tmp_path / "changed.onnx")
    return tmp_path / "changed.onnx"


@pytest.mark.parametrize(("props", "message"), [
    ({"efficientdet.input": None}, "it lacks efficientdet.input; export.py writes them"),
    ({"efficientdet.input": '{"kind": "zoom", "size": [1, 1]}'}, "resize rule 'zoom'; wanted one of letterbox, stretch, fit"),
    ({"efficientdet.input": '{"kind": "fit", "size": [9]}'}, "wanted all above zero"),
    ({"efficientdet.input": "[]"}, "a resize rule is"),
    ({"efficientdet": "{}"}, "what it says of itself is damaged"),
    ({"efficientdet": "not json"}, "what it says of itself is damaged"),
])
def test_a_file_that_says_too_little_is_one_line(exported, tmp_path, props, message):
    with pytest.raises(InputError, match=message.replace("[", r"\[")) as caught:
        read_artefact(changed(exported[0], tmp_path, **props))
    assert "\n" not in str(caught.value)


def test_other_files_are_told(exported, tmp_path):
    with pytest.raises(InputError, match="puts out class_logits, box_deltas, best_logits; wanted boxes, scores, classes"):
        read_artefact(exported[0] / "network.onnx")
    content = (exported[0] / "detector.onnx").read_bytes()
    rng = np.random.default_rng(0)
    others = {"empty": b"", "text": b"<html>", "noise": rng.bytes(5000), "half": content[:len(content) // 2]}
    for name, damaged in others.items():
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(InputError, match=name):
            read_artefact(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_artefact(tmp_path / "nothing")
