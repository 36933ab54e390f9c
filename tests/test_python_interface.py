"""The functions of `efficientdet` do what the programs do, name a wrong argument, and leave the process as it was."""

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import forked_programs
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from miniature import HPARAMS, build_miniature
from miniature_programs import path_to_miniature
from PIL import Image

import efficientdet
from dataset.class_names import ClassNames
from dataset.synthetic import draw_data_set
from efficientdet.checkpoints import restore
from efficientdet.operations.interface import call as called
from efficientdet.options.evaluate import EvaluateOptions
from efficientdet.training import state as training_state
from object_detection.coco.run_length_masks import decoded

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "docs" / "quick_start.ipynb"
CPU = {"precision": "float32", "use_xla": False}


def state_of_process():
    return (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        tf.config.functions_run_eagerly(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False),
        set(flags.FLAGS),
    )


@pytest.fixture(scope="module")
def worked(tmp_path_factory):
    """Folder and results of all functions on the miniature network, and the state of the process before and after."""
    folder = tmp_path_factory.mktemp("worked")
    draw_data_set(folder / "drawn", images={"train": 12, "val": 4}, image_size=(64, 64), seed=1)
    with pytest.MonkeyPatch.context() as patch:
        for module in (restore, training_state):
            patch.setattr(module, "build_detector", build_miniature)
        random.seed(5)
        before = state_of_process()
        results = {
            "convert": efficientdet.convert(folder / "drawn", folder / "records"),
            "examine": efficientdet.examine(folder / "records", image_size=64, output_dir=folder / "check"),
            "train": efficientdet.train(
                folder / "records",
                model_dir=folder / "model",
                hparams={**HPARAMS, "num_epochs": 2},
                batch_size=np.int64(4),
                checkpoint_period=1,
                **CPU,
            ),
            "evaluate": efficientdet.evaluate(folder / "model", folder / "records", report=folder / "report", **CPU),
            "export": efficientdet.export(
                folder / "model", folder / "exported", formats=["onnx"], runs=1, val_file_pattern=folder / "records"
            ),
            "exported": efficientdet.evaluate(folder / "exported" / "detector.onnx", folder / "records"),
            "saved": efficientdet.evaluate(folder / "model" / "emackpt-final", folder / "records"),
        }
        yield folder, results, before, state_of_process()


def test_records_are_those_that_the_labels_say(worked):
    folder, results, *_ = worked
    labels = {
        split: json.loads((folder / f"drawn/annotations/instances_{split}.json").read_text())
        for split in ("train", "val")
    }
    assert results["convert"].images == {"train": 12, "val": 4}
    assert results["convert"].boxes == {split: len(content["annotations"]) for split, content in labels.items()}
    assert results["convert"].class_names == tuple(entry["name"] for entry in labels["train"]["categories"])
    assert all(path.is_file() for path in results["convert"].reports.values())


def test_an_examination_is_that_of_the_page(worked):
    _, results, *_ = worked
    found, content = results["examine"], json.loads(results["examine"].numbers.read_text())
    assert [finding.line for finding in found.findings] == [entry["line"] for entry in content["findings"]]
    assert found.settings == content["suggested"]["settings"]
    assert content["splits"]["validation"]["images"] == 4
    assert "<!doctype html>" in found.page.read_text().lower()


def test_exported_files_have_a_page(worked):
    folder, results, *_ = worked
    text = (folder / "exported" / "README.md").read_text()
    numbers = results["evaluate"].numbers
    assert f"the checkpoint has AP {numbers['AP']:.4f}, AP50 {numbers['AP50']:.4f}." in text
    assert "detector.onnx" in text
    assert str(folder) not in text  # a published model does not show where it was made


def test_numbers_are_those_in_the_files(worked):
    folder, results, *_ = worked
    trained = json.loads((folder / "model" / "metrics-final.json").read_text())
    assert results["train"].numbers == {name: trained[name] for name in results["train"].numbers}
    assert len(results["train"].numbers) == 12
    assert results["evaluate"].numbers == results["train"].numbers
    assert results["evaluate"].images == 4
    assert results["evaluate"].report.is_file()
    table = json.loads((folder / "exported" / "artifacts.json").read_text())
    assert results["export"].ap == {"onnx": table["artifacts"][0]["quality"]["ap"]}
    assert results["exported"].numbers["AP"] == results["export"].ap["onnx"]
    assert results["saved"].numbers == pytest.approx(results["evaluate"].numbers, abs=1e-3)
    assert results["export"].files == {"onnx": folder / "exported" / "detector.onnx"}
    for path in (results["train"].saved_model, results["train"].report, results["train"].log, results["export"].table):
        assert path.exists()


def test_the_process_is_as_it_was(worked):
    *_, before, after = worked
    assert after == before


def test_results_read_well(worked):
    _, results, *_ = worked
    for name, result in results.items():
        text = repr(result)
        assert text.startswith(type(result).__name__)
        assert 2 <= len(text.splitlines()) < 20, name
    assert "AP " in repr(results["train"])
    assert "train 12, val 4" in repr(results["convert"])
    with pytest.raises(AttributeError):
        results["train"].model_dir = "other"


def test_a_second_training_in_the_process_resumes(worked, capsys):
    folder, *_ = worked
    resumed = efficientdet.train(
        str(folder / "records" / "train-*"),
        model_dir=folder / "model",
        hparams=HPARAMS,
        num_epochs=3,
        batch_size=4,
        **CPU,
    )
    assert "after step 6" in capsys.readouterr().out  # 12 images are 3 steps of 4, twice
    assert resumed.numbers == {}  # a glob names no validation records
    [found] = efficientdet.load_detector(folder / "model", precision="float32").predict(
        folder / "drawn" / "val" / "000013.jpg", min_score=0
    )
    assert len(found) > 0


def test_backbones_of_keras_without_a_network_are_one_line(worked, monkeypatch, tmp_path):
    folder, *_ = worked
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("EFFICIENTDET_WEIGHTS", str(tmp_path / "cache"))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")
    message = r"^efficientnet-b0: http://127.0.0.1:9/efficientnetb0_notop.h5: cannot be downloaded \(.*refused\); "
    with pytest.raises(efficientdet.InputError, match=message) as caught:
        efficientdet.train(
            folder / "records", model_dir=tmp_path / "model", hparams=HPARAMS, backbone_init="imagenet", **CPU
        )
    assert f"download it to {tmp_path}/cache/efficientnetb0_notop.h5" in str(caught.value)


def test_ctrl_c_in_a_training_saves_and_is_a_keyboard_interrupt(worked):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job that a shell started in the background
    folder, *_ = worked
    log = folder / "stopped" / "time_log.txt"

    def interrupt():
        while not (log.exists() and "train/cls_loss" in log.read_text()):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="the same call continues"):
        efficientdet.train(
            folder / "records", model_dir=folder / "stopped", hparams=HPARAMS, num_epochs=100, batch_size=4, **CPU
        )
    thread.join()
    assert [*(folder / "stopped").glob("ckpt-*.index")]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_listener_that_would_end_the_process_raises_in_a_users():
    program = (
        "import os, signal, time\nfrom program_support.signals import Listener, in_a_users_process\n"
        "for number in (signal.SIGINT, signal.SIGTERM):\n"
        "    with in_a_users_process():\n"
        "        listener = Listener(lambda number: listener.end(number, 'told')).start()\n"
        # Short sleeps: a signal just before the system call of a sleep does not interrupt it
        "    try:\n        os.kill(os.getpid(), number)\n        for _ in range(300): time.sleep(0.1)\n"
        "    except BaseException as error:\n        print(repr(error))\n"
        "    listener.stop()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "KeyboardInterrupt()\nSystemExit(143)\n", "told\ntold\n")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: efficientdet.train("x", model_dir="m", epochs=3),
            r"train\(\) has no argument 'epochs'; use num_epochs",
        ),
        (
            lambda: efficientdet.convert("x", val_fractio=0.2),
            r"convert\(\) has no argument 'val_fractio'; the nearest is val_",
        ),
    ],
)
def test_an_unknown_argument_is_a_type_error_with_the_nearest_name(call, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: efficientdet.train("x", model_dir="m", batch_size=0), "batch_size=0: expected at least 1"),
        (lambda: efficientdet.train("x", model_dir="m", batch_size="many"), "batch_size=many: invalid literal"),
        (
            lambda: efficientdet.train("x", model_dir="m", strategy="tpu"),
            ".*strategy=tpu: has been removed: a process trains on",
        ),
        (lambda: efficientdet.evaluate("nowhere", "x"), "ckpt_path=nowhere: there is no checkpoint of that name"),
    ],
)
def test_a_refused_value_is_one_line_without_dashes(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(efficientdet.InputError, match=f"^{message}") as error:
        call()
    assert "\n" not in str(error.value)
    assert "--" not in str(error.value).partition(": ")[0]


def found_objects(**fields):
    boxes = np.array([[2, 4, 12, 30], [10.5, 3.25, 20.25, 9]], np.float32)
    return efficientdet.ImageDetections(
        boxes=boxes,
        scores=np.array([0.9, 0.5], np.float32),
        category_ids=np.array([7, 3]),
        names=("cat", "dog"),
        class_names=ClassNames((3, 5, 7), ("dog", "cow", "cat")),
        **fields,
    )


def noise():
    return np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)


def test_detections_are_drawn_saved_and_shown(tmp_path):
    pixels = noise()
    Image.fromarray(pixels).save(tmp_path / "given.png")
    found = found_objects(image=tmp_path / "given.png")
    drawn = np.asarray(found.draw())
    changed = np.any(drawn != pixels, axis=2)
    assert changed[4, 2:12].all()  # the upper side of the first box
    assert not changed[:3].any()
    assert not changed[32:].any()
    np.testing.assert_array_equal(np.asarray(found_objects().draw(pixels)), drawn)
    assert found.save(tmp_path / "new" / "drawn.png") == tmp_path / "new" / "drawn.png"
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "new" / "drawn.png")), drawn)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(found._repr_png_()))), drawn)
    assert found_objects()._repr_png_() is None
    assert repr(found).splitlines()[:2] == ["ImageDetections: 2 objects", "  cat 0.90 at 2.0 4.0 12.0 30.0"]
    for call, message in (
        (lambda: found.save("drawn.gif"), "drawn.gif: expected a name that ends with .jpg"),
        (lambda: found_objects().draw(), "the detections hold no image"),
    ):
        with pytest.raises(efficientdet.InputError, match=message):
            call()


def test_crops_are_all_pixels_of_the_boxes():
    pixels = noise()
    first, second = found_objects(image=pixels).crop()
    np.testing.assert_array_equal(np.asarray(first), pixels[4:30, 2:12])
    np.testing.assert_array_equal(np.asarray(second), pixels[3:9, 10:21])


def test_detections_as_coco_has_them():
    masks = np.zeros((2, 40, 50), bool)
    masks[0, 5:9, 3:6] = True
    plain, masked = found_objects().to_coco(image_id=4), found_objects(masks=masks).to_coco()
    assert plain == [
        {"image_id": 4, "category_id": 7, "bbox": [2.0, 4.0, 10.0, 26.0], "score": 0.9},
        {"image_id": 4, "category_id": 3, "bbox": [10.5, 3.25, 9.75, 5.75], "score": 0.5},
    ]
    np.testing.assert_array_equal(decoded(masked[0]["segmentation"]), masks[0])
    assert json.dumps(masked)


def test_detections_as_supervision_has_them(monkeypatch):
    found = found_objects()
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(efficientdet.InputError, match="needs the package supervision: pip install supervision"):
        found.to_supervision()
    monkeypatch.setitem(sys.modules, "supervision", types.SimpleNamespace(Detections=lambda **fields: fields))
    fields = found.to_supervision()
    np.testing.assert_array_equal(fields["xyxy"], found.boxes)
    assert fields["class_id"].tolist() == [7, 3]
    assert fields["data"]["class_name"].tolist() == ["cat", "dog"]


@pytest.mark.slow
def test_the_notebook_of_the_quick_start(tmp_path):
    """Its cells run one after the other, on the miniature network; what it stores are such outputs."""
    done = forked_programs.run(
        [sys.executable, ROOT / "tests" / "notebook_run.py", NOTEBOOK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path_to_miniature(tmp_path), "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = json.loads(done.stdout)

    def kinds(cell_outputs):
        return [sorted(output.get("data", {output["output_type"]: None})) for output in cell_outputs]

    assert [kinds(found) for found in outputs] == [kinds(cell["outputs"]) for cell in cells]
    assert any("image/png" in output.get("data", {}) for found in outputs for output in found)
    assert not any(word in NOTEBOOK.read_text() for word in ("/work", "/tmp", "/root"))


def test_text_for_a_switch_is_read_as_its_flag_would_be():
    def amp_of(text):
        return called(lambda options: options.amp, EvaluateOptions, "evaluate", amp=text)

    assert [amp_of(text) for text in ("false", "True", "0", False)] == [False, True, False, False]
    with pytest.raises(efficientdet.InputError, match=r"^amp=perhaps: expected true or false$"):
        amp_of("perhaps")
