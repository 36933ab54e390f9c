"""Exported ONNX files: same detections as the checkpoint, without TensorFlow; errors for other files."""

import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from miniature import build_miniature
from PIL import Image
from standins import install
from stored_miniature import store_miniature

import efficientdet
from dataset.class_names import read_class_names
from dataset.input.pipeline import original_images
from dataset.input.resize import fit_within, host_resize, letterbox, stretch
from dataset.records.record_index import index_records
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import read_bundle
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint
from efficientdet.exports import export_artifacts as artifacts
from efficientdet.exports.export_artifacts import ExportConfig, export_artifacts
from efficientdet.exports.formats import checked_formats, export_formats, format_of
from efficientdet.plugins.mask_rcnn.detector import TwoStageDetector
from program_support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "rule",
    [
        letterbox((64, 96)),
        letterbox((64, 96), half_pixel_centers=False),
        letterbox((64, 96), antialias=True),
        stretch((50, 31)),
        stretch((50, 31), antialias=True),
        fit_within(40, 70),
    ],
    ids=str,
)
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


# Files that detect by themselves
FILES = ("detector.onnx", "detector-int8.onnx", "detector.xml", "detector.tflite", "detector-int8.tflite")
FORMATS = ("onnx", "onnx-raw", "onnx-int8", "openvino", "litert", "litert-int8", "savedmodel")
MODEL = {"model_name": "efficientdet-d0", "model_name_given": False, "overrides": {}}


def found_as_truth(folder, records):
    """A COCO json with the checkpoint's best detections in records, so that the AP of random weights is not zero."""
    detector = efficientdet.load_detector(folder / "ckpt", precision="float32")
    categories = [
        {"id": number, "name": name}
        for number, name in zip(detector.class_names.category_ids, detector.class_names.names, strict=True)
    ]
    images, annotations = [], []
    for image_id, _, image in original_images(index_records(records), range(3)):
        images.append({"id": image_id, "height": image.shape[0], "width": image.shape[1], "file_name": f"{image_id}"})
        [found] = detector.predict([image], min_score=0)
        for number in range(1, 20, 3):
            x_min, y_min, x_max, y_max = found.boxes[number].tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "iscrowd": 0,
                    "category_id": int(found.category_ids[number]),
                    "area": (x_max - x_min) * (y_max - y_min),
                    "bbox": [x_min, y_min, x_max - x_min, y_max - y_min],
                }
            )
    path = folder / "truth.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(path)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with the files of export.py for a miniature, images of several sizes, and eval.py's metrics."""
    folder = tmp_path_factory.mktemp("exported")
    images = store_miniature(folder)
    records = tuple(sorted(map(str, (folder / "drawn").glob("val-*.tfrecord"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restore, "build_detector", build_miniature)
        truth = found_as_truth(folder, records)
        export_artifacts(
            ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL),
            ExportConfig(
                output_dir=str(folder),
                formats=FORMATS,
                runs=2,
                images=tuple(map(str, images)),
                records=records,
                val_json_file=truth,
                calibration_records=records,
            ),
        )
        measures = evaluate_checkpoint(
            EvaluationConfig(
                model=ModelConfig(ckpt_path=f"{folder}/ckpt", class_names=read_class_names(truth), **MODEL),
                records=records,
                val_json_file=truth,
                batch_size=2,
            )
        )
        yield folder, images, measures


def test_the_table(exported):
    folder, images, measures = exported
    content = json.loads((folder / "artifacts.json").read_text())
    table = {line["format"]: line for line in content["artifacts"]}
    assert tuple(table) == FORMATS
    assert content["checkpoint"]["ap"] == pytest.approx(measures.numbers["AP"], abs=1e-6)
    assert measures.numbers["AP"] > 0.3
    everything = efficientdet.load_detector(folder / "ckpt", precision="float32").predict(images, min_score=0)
    least = efficientdet.load_detector(folder / "detector.onnx").thresholds
    shown = sum(int((found.scores >= least.of(found.category_ids)).sum()) for found in everything)
    assert 0 < shown < sum(map(len, everything)) == 60
    assert all(line["compared"] == shown and line["median_ms"] > 0 for line in table.values())
    for name in ("onnx", "onnx-raw", "openvino", "litert", "savedmodel"):
        assert table[name]["agreement"] == 1.0
        assert table[name]["score_difference"] < 1e-5
        assert table[name]["quality"]["ap"] == pytest.approx(measures.numbers["AP"], abs=1e-6)
    shown = (folder / "README.md").read_text()
    assert "| onnx | detector.onnx | " in shown
    assert f"AP of 3 images of the validation records; the checkpoint has AP {measures.numbers['AP']:.4f}" in shown


def test_every_file_stores_the_thresholds_and_needs_no_later_runtime_than_its_operators(exported):
    """IR version 8 is that of opset 18; ONNX Runtime 1.16 refuses version 10, whatever the operators are."""
    folder, _, measures = exported
    assert [onnx.load(file).ir_version for file in folder.glob("*.onnx")] == [8] * 3
    assert measures.score_thresholds["overall"] > 0
    for name in FILES:
        assert format_of(name).load(folder / name)[1].description.score_thresholds == measures.score_thresholds
    assert not read_bundle(folder / "ckpt")[1].score_thresholds  # export.py leaves the checkpoint alone


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "export.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "snippet",
    [one for one in SNIPPETS if "cv2" not in one and "ExportFormat" not in one],
    ids=lambda snippet: str(snippet.count("\n")),
)
def test_the_snippets_of_the_page_as_they_stand(exported, tmp_path, monkeypatch, capsys, snippet):
    """A photo with an EXIF rotation; for LiteRT of the network's size, which Pillow does not resize."""
    folder, images, _ = exported
    (tmp_path / "exported").symlink_to(folder)
    exif = Image.Exif()
    exif[0x0112] = 1 if "tflite" in snippet else 6
    with Image.open(images[0]) as image:
        image.resize((64, 64) if "tflite" in snippet else (311, 170)).save(tmp_path / "photo.jpg", exif=exif)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "docs/guides/export.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    if "for (y_min, x_min" not in snippet:  # `load_detector`, and the precision
        assert lines
        return
    name = re.search(r'exported/([\w.-]+)"', snippet)[1]
    [wanted] = efficientdet.load_detector(folder / name).predict("photo.jpg")
    assert len(lines) == len(wanted) > 0
    for line, class_name, score, box in zip(lines, wanted.names, wanted.scores, wanted.boxes, strict=True):
        told = re.fullmatch(rf"{class_name} ([\d.]+) \[(.*)\]", line)
        assert float(told[1]) == pytest.approx(score, abs=6e-4)
        assert [float(side) for side in told[2].split(", ")] == pytest.approx(box.tolist(), abs=0.06)


def test_the_snippet_of_opencv_finds_the_best_detection(exported, tmp_path, monkeypatch, capsys):
    """The stored hyperparameters become those that the miniature is built with."""
    folder, images, _ = exported
    [snippet] = [one for one in SNIPPETS if "cv2" in one]
    model = onnx.load(folder / "network.onnx")
    props = {entry.key: entry.value for entry in model.metadata_props}
    description = json.loads(props["efficientdet"])
    description["hparams"] |= {"min_level": 3, "max_level": 4, "anchor_scale": 2.0}
    description["score_thresholds"] = {"overall": 0.0}
    onnx.helper.set_model_props(model, {**props, "efficientdet": json.dumps(description)})
    (tmp_path / "exported").mkdir()
    onnx.save(model, tmp_path / "exported" / "network.onnx")
    with Image.open(images[0]) as image:
        image.resize((64, 64)).save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "docs/guides/export.md", "exec"), {})
    name, score, box = re.fullmatch(r"(.+) ([\d.]+) \[(.*)\]", capsys.readouterr().out.splitlines()[0]).groups()
    [found] = efficientdet.load_detector(folder / "ckpt", precision="float32").predict("photo.jpg", min_score=0)
    assert (name, float(score)) == (found.names[0], pytest.approx(float(found.scores[0]), abs=0.01))
    assert [float(side) for side in box.split(", ")] == pytest.approx(found.boxes[0].tolist(), abs=0.5)


def test_8_bits_say_what_they_cost(exported):
    folder, _, _ = exported
    line = json.loads((folder / "artifacts.json").read_text())["artifacts"][2]
    assert line["quality"]["ap_difference"] < -0.01
    low, high = line["quality"]["ap_difference_interval"]
    assert low <= line["quality"]["ap_difference"] <= high
    assert f"{line['quality']['ap_difference']:+.4f}, 95 % interval {low:+.4f} to" in (folder / "README.md").read_text()
    kernels = {
        tensor.data_type
        for tensor in onnx.load(folder / "detector-int8.onnx").graph.initializer
        if len(tensor.dims) == 4 and tensor.dims[0] > 1
    }
    assert kernels == {onnx.TensorProto.INT8, onnx.TensorProto.FLOAT}  # the last ones stay


def test_neither_tensorflow_nor_keras_is_imported(exported):
    folder, images, _ = exported
    program = f"""
import sys
import efficientdet
for name in {FILES}:
    found = efficientdet.load_detector({str(folder)!r} + "/" + name).predict({str(images[0])!r}, min_score=0)
    print(len(found[0]), sorted({{"tensorflow", "keras", "jax", "onnx"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == len(FILES) * "20 []\n", done.stderr


def test_tiles_of_the_standard_input_take_neither_tensorflow_nor_keras(exported, tmp_path):
    folder, images, _ = exported
    for package in ("tensorflow", "keras"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('wanted after all')")
    with open(images[0], "rb") as image:
        done = subprocess.run(
            [
                sys.executable,
                ROOT / "infer.py",
                f"--model={folder / 'detector.onnx'}",
                "--image_path=-",
                "--tile=64",
                f"--output_dir={tmp_path / 'out'}",
                "--min_score_thresh=0",
                "--format=csv",
            ],
            stdin=image,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "detections.json").read_text())
    assert len(results) > 20  # of five looks at it
    assert len((tmp_path / "out" / "detections.csv").read_text().splitlines()) == len(results) + 1


def half(content):
    return content[: len(content) // 2]


DAMAGED = [  # written file: how it differs from the exported one of this name; message
    ({"network.onnx": None}, "outputs class_logits, box_deltas, best_logits; expected boxes, scores, classes"),
    *(
        ({f"detector{suffix}": change}, f"detector{suffix}")
        for suffix in (".onnx", ".xml", ".tflite")
        for change in (lambda _: b"", lambda _: b"<html>", lambda _: np.random.default_rng(0).bytes(5000), half)
    ),
    ({}, r"detector\.onnx: cannot be read"),
    ({"detector.xml": None}, r"detector\.bin: cannot be read \(No such file"),
    ({"detector.xml": None, "detector.bin": half}, "openvino cannot open it"),
    ({"detector.tflite": lambda content: content[:-30]}, r"no efficientdet\); use export.py"),
    ({"detector.tflite": lambda content: b"TFL3" + content}, "is no LiteRT file"),
    (
        {"detector.tflite": lambda content: content[:20] + bytes(100) + content[120:]},
        r"detector\.tflite: litert cannot open it \(.*is the file complete\?",
    ),
    ({"detector-int8.tflite": None}, r"detector-int8-postprocessing\.tflite: cannot be read \(No such file"),
    ({"detector-int8-postprocessing.tflite": None}, "is not a detector exported by this project"),
]


@pytest.mark.parametrize(("files", "message"), DAMAGED)
def test_damaged_files_are_one_line(exported, tmp_path, files, message):
    folder, images, _ = exported
    for name, change in files.items():
        content = (folder / name).read_bytes()
        (tmp_path / name).write_bytes(change(content) if change else content)
    with pytest.raises(InputError, match=message) as caught:
        efficientdet.load_detector(tmp_path / next(iter(files), "detector.onnx")).predict(images)
    assert "\n" not in str(caught.value)


def test_a_runtime_that_cannot_run_a_file_is_refused(exported):
    with pytest.raises(InputError, match="is a file of OpenVINO; onnxruntime cannot run it, openvino can"):
        efficientdet.load_detector(exported[0] / "detector.xml", runtime="onnxruntime")


def test_8_bits_in_onnx_runtime_are_noted(exported, capsys):
    for name, is_noted in (("detector.onnx", False), ("detector-int8.onnx", True)):
        efficientdet.load_detector(exported[0] / name, runtime="onnxruntime")
        assert ("8 bits take about twice the time" in capsys.readouterr().out) == is_noted


def test_a_full_disk_is_named_where_openvino_does_not(exported, tmp_path, monkeypatch):
    folder, _, _ = exported
    failing = Mock(side_effect=RuntimeError("Exception from src/core:\nbasic_ios::clear: iostream error"))
    monkeypatch.setattr("openvino.save_model", failing)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=7))
    with pytest.raises(InputError, match=r"detector\.xml: cannot be written \(its disk has 7 bytes free\)"):
        export_artifacts(
            ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL),
            ExportConfig(output_dir=str(tmp_path), formats=("openvino",), runs=1),
        )


@pytest.mark.parametrize("name", ["onnx", "openvino", "litert"])
def test_a_full_disk_leaves_nothing_under_the_final_name(exported, tmp_path, monkeypatch, name):
    folder, _, _ = exported

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(InputError, match=r"cannot be written \(No space left on device\)"):
        export_artifacts(
            ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL),
            ExportConfig(output_dir=str(tmp_path), formats=(name,), runs=1),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_finds_something_else_is_an_error_unless_nothing_was_learnt(
    exported, tmp_path, monkeypatch, capsys
):
    folder, _, _ = exported
    model = ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL)
    image = tmp_path / "noise.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)).save(image)
    config = ExportConfig(output_dir=str(tmp_path), formats=("onnx",), runs=1, images=(str(image),))
    monkeypatch.setattr(artifacts, "_LEAST_AGREEMENT", 1.1)  # which no file reaches
    monkeypatch.setattr(artifacts, "_TRAINED", 0.0)
    with pytest.raises(
        RuntimeError, match=r"detector.onnx does not find the detections of the checkpoint; .*README.md"
    ):
        export_artifacts(model, config)
    monkeypatch.setattr(artifacts, "_TRAINED", 1.1)
    export_artifacts(model, config)
    assert "warning: detector.onnx does not find all detections of the checkpoint, whose" in capsys.readouterr().out


def test_openvino_is_the_default_for_onnx_in_8_bits(exported):
    folder, _, _ = exported
    defaults = {name: format_of(name).runtime_of(f"{folder}/{name}", "keras", asked_by="") for name in FILES[:3]}
    assert defaults == {"detector.onnx": "onnxruntime", "detector-int8.onnx": "openvino", "detector.xml": "openvino"}
    assert format_of("a.onnx").runtime_of(f"{folder}/detector-int8.onnx", "onnxruntime", asked_by="") == "onnxruntime"


def test_images_of_the_records_are_compared_if_no_others_are_given(exported, tmp_path):
    folder, _, _ = exported
    records = tuple(sorted(map(str, (folder / "drawn").glob("val-*.tfrecord"))))

    def compared(*images):
        config = ExportConfig(output_dir=str(tmp_path), formats=("onnx",), runs=1, images=images, records=records)
        [line] = export_artifacts(ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL), config).artifacts
        return line.compared

    files = sorted(map(str, (folder / "drawn" / "val").glob("*.jpg")))
    assert compared() == compared(*files)
    assert compared() > compared(files[0]) > 0


def test_formats_that_a_network_or_a_backend_lacks_are_told_first(monkeypatch):
    two_stages = TwoStageDetector.__new__(TwoStageDetector)
    with pytest.raises(InputError, match="--formats=litert-int8: LiteRT has no operation for RoIAlign"):
        export_formats()["litert-int8"].check(two_stages)
    monkeypatch.setattr("efficientdet.devices.device.backend_name", lambda: "jax")
    for name in ("savedmodel", "litert"):
        with pytest.raises(InputError, match=f"--formats={name}: needs the TensorFlow backend; KERAS_BACKEND is jax"):
            export_formats()[name].check(two_stages)
    for name in ("onnx", "openvino"):
        export_formats()[name].check(two_stages)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "--formats is empty; expected some of onnx, onnx-raw"),
        (("onnx", "tflite"), "--formats=tflite: expected some of onnx, onnx-raw"),
        (("litert",), r"--formats=litert needs the package ai_edge_litert: pip install -e '\.\[litert\]'"),
        (("openvino",), r"--formats=openvino needs the package openvino: pip install -e '\.\[export\]'"),
    ],
)
def test_formats_that_cannot_be_written_are_told(monkeypatch, names, message):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("ai_edge_litert", "openvino") else found(name)
    )
    with pytest.raises(InputError, match=message):
        checked_formats(names)


def test_the_format_of_the_page_in_an_installed_package(exported, tmp_path, monkeypatch, capsys):
    folder, _, _ = exported
    install(tmp_path, "efficientdet.export_formats", ["class-list = class_list:FORMAT"])
    [snippet] = [one for one in SNIPPETS if "ExportFormat" in one]
    (tmp_path / "class_list.py").write_text(snippet)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = ExportConfig(output_dir=str(tmp_path), formats=checked_formats(["class-list"]), runs=1)
    export_artifacts(ModelConfig(ckpt_path=f"{folder}/ckpt", **MODEL), config)
    names = efficientdet.load_detector(folder / "detector.onnx").class_names.names
    assert (tmp_path / "classes.txt").read_text() == ",".join(names)
    assert "classes.txt: 100.0% of 0 detections agree, not timed (needs a text editor)" in capsys.readouterr().out
