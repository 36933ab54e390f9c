"""The quick start: what it chooses, what it runs, what it does again; and once the whole way in miniature."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records

from dataset.synthetic import draw_data_set
from efficientdet.quickstart import choices, steps
from efficientdet.quickstart.choices import Pace
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.steps import QuickstartConfig, quickstart
from object_detection.errors import InputError

ROOT = Path(__file__).resolve().parent.parent


def test_the_side_is_the_largest_that_leaves_time():
    pace = Pace(seconds=1.0, side=256, batch_size=4, accelerated=False)
    wanted, minutes = 1000, 30  # 1530 s of training: 1.53 s a step, so 256 * sqrt(1.53) = 316 pixels
    side, why = choices.image_side(640, 512, pace, wanted_steps=wanted, minutes=minutes)
    assert side == 288
    assert "largest at which 1000 steps take 30 minutes" in why
    assert choices.image_side(640, 512, pace, wanted_steps=wanted, minutes=90) == (512, "the model's own")
    assert choices.image_side(300, 512, pace, wanted_steps=wanted, minutes=90) == (320, "as large as the images")
    side, why = choices.image_side(640, 512, pace, wanted_steps=wanted, minutes=1)
    assert side == 128
    assert "204 steps fit" in why  # 51 s at a quarter of a second
    assert choices.image_side(40, 512, pace, wanted_steps=wanted, minutes=90)[0] == 128


def test_the_epochs_are_what_the_minutes_hold():
    pace = Pace(seconds=0.5, side=256, batch_size=4, accelerated=False)
    assert choices.number_of_epochs(205, pace, wanted_steps=2500, minutes=30)[0] == 58  # 3060 steps, 52 an epoch
    epochs, why = choices.number_of_epochs(205, pace, wanted_steps=500, minutes=30)
    assert epochs == 39  # 2000 steps
    assert "more would bring little" in why
    assert choices.number_of_epochs(4, pace, wanted_steps=2500, minutes=30)[0] == 300
    epochs, why = choices.number_of_epochs(118287, pace, wanted_steps=2500, minutes=30)
    assert epochs == 1
    assert "even one takes longer than 30 minutes" in why


def test_other_choices():
    assert choices.typical_side(np.array([[480, 640], [640, 480], [100, 90]])) == 640
    assert [choices.batch_size(images, accelerated=False) for images in (3, 99)] == [3, 4]
    assert choices.batch_size(99, accelerated=True) == 16
    assert choices.learning_rate(4, from_random_weights=True)[0] == pytest.approx(0.1)
    assert choices.learning_rate(16, from_random_weights=True)[0] == pytest.approx(0.16)
    assert choices.learning_rate(4, from_random_weights=False)[0] == pytest.approx(0.01)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Programs that note how they were called, and write what the steps read of them; `fails` names one that does not."""
    calls, fails = [], set()

    def run(module, settings, *, go_on):
        if module in fails:
            sys.exit(3)
        calls.append((module, {key: value for key, value in settings.items() if value is not None}))
        if module == "dataset.create_tfrecord":
            draw_records(settings["output_dir"], images={"train": 5, "val": 2})
        elif module == "dataset.doctor":
            settings["output_dir"].mkdir()
            (settings["output_dir"] / "doctor.json").write_text(json.dumps({"suggested": {"settings": {
                "image_size": "96x64", "anchor_scale": 2.0}}}))
        elif settings.get("benchmark"):
            settings["model_dir"].mkdir()
            (settings["model_dir"] / "time_log.txt").write_text(
                'other\nDLLL {"data": {"latency_training_p50": 0.5}}\n'
                'DLLL {"data": {"peak_device_memory_bytes": null, "load_average": 1e3}}\n')
        elif module == "eval":
            settings["output_json"].write_text('{"AP": 0.5, "AP50": 0.75}')

    monkeypatch.setattr(steps, "run_program", run)
    return calls, fails


def config(folder, **changes):
    return QuickstartConfig(**{
        "images": "photos", "annotations": None, "output_dir": str(folder), "model_name": "efficientdet-d0", "minutes": 30.0,
        "weights": steps.NO_WEIGHTS, "formats": ("onnx",), "hparams": "", **changes})


def test_the_way(programs, tmp_path, capsys):
    calls, fails = programs
    fails.add("eval")
    with pytest.raises(SystemExit) as caught:
        quickstart(config(tmp_path / "out", hparams="box_class_repeats=1"))
    assert caught.value.code == 3
    assert [module for module, _ in calls] == ["dataset.create_tfrecord", "train", "dataset.doctor", "train", "train"]
    assert calls[1][1]["hparams"] == "box_class_repeats=1,image_size=256"
    assert calls[1][1]["log_steps"] == calls[3][1]["log_steps"] == 1  # of more together the times are means
    assert calls[2][1]["hparams"] == "image_size=128,jitter_min=0.8,jitter_max=1.25,box_class_repeats=1"
    training = calls[-1][1]
    assert training["hparams"] == "image_size=96x64,jitter_min=0.8,jitter_max=1.25,box_class_repeats=1,anchor_scale=2.0"
    assert training["training_file_pattern"] == f"{tmp_path}/out/records/train-*"
    assert (training["batch_size"], training["num_epochs"], training["checkpoint_period"]) == (4, 300, 75)
    assert not (tmp_path / "out" / "probe").exists()
    assert "warning: other work keeps this machine busy (a load of 1000.0" in capsys.readouterr().out

    fails.clear()
    del calls[:]
    quickstart(config(tmp_path / "out", hparams="box_class_repeats=1"))
    assert [module for module, _ in calls] == ["eval", "export"]
    assert calls[0][1]["val_file_pattern"] == f"{tmp_path}/out/records/val-*"
    assert [path.parent for path in calls[1][1]["images"]] == [Path("photos")] * 2
    said = capsys.readouterr().out
    assert "train: done before" in said
    assert "AP 0.500, AP50 0.750 on the validation images" in said


def test_other_wishes_and_broken_notes_are_refused(tmp_path):
    notes = tmp_path / "quickstart.json"
    notes.write_text(json.dumps({"asked": {"minutes": 10}, "done": {}}))
    with pytest.raises(InputError, match=r"quickstart.json: was begun with .*another --output_dir"):
        quickstart(config(tmp_path))
    for text in ("{", "[]", "{}", '{"asked": 3, "done": 4}'):
        notes.write_text(text)
        with pytest.raises(InputError, match="are no notes of a quick start"):
            quickstart(config(tmp_path))


def test_a_program_that_fails_ends_with_its_code(capfd):
    with pytest.raises(SystemExit) as caught:
        run_program("dataset.create_tfrecord", {"images": "/nowhere", "val_fraction": None}, go_on="go on so")
    assert caught.value.code == 2
    told = capfd.readouterr()
    assert "$ python " in told.out
    assert "--images=/nowhere: no such folder" in told.err
    assert "ended with 2; go on so" in told.err


def test_a_signal_is_handed_on(tmp_path):
    (tmp_path / "listening.py").write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('saved').touch(), sys.exit(143)))\n"
        "pathlib.Path('ready').touch()\ntime.sleep(60)\n")
    starter = start_program_in(tmp_path)
    starter.send_signal(signal.SIGTERM)
    assert starter.wait(timeout=30) == 143
    assert (tmp_path / "saved").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_a_program_ends_with_a_quick_start_that_is_killed(tmp_path):
    (tmp_path / "listening.py").write_text(
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('saved').touch(), sys.exit(143)))\n"
        "pathlib.Path('unfinished').write_text(str(os.getpid()))\nos.replace('unfinished', 'ready')\ntime.sleep(60)\n")
    starter = start_program_in(tmp_path)
    program = int((tmp_path / "ready").read_text())
    starter.kill()
    starter.wait()
    for _ in range(3000):
        if not is_running(program):
            break
        time.sleep(0.01)
    assert not is_running(program)
    assert (tmp_path / "saved").exists()


def start_program_in(folder):
    """A process that runs listening.py as a quick start does; returns when that is ready."""
    starting = "from efficientdet.quickstart.programs import run_program; run_program('listening', {}, go_on='')"
    starter = subprocess.Popen(
        [sys.executable, "-c", starting], cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""})
    while not (folder / "ready").exists():
        assert starter.poll() is None
        time.sleep(0.01)
    return starter


def is_running(process):
    """Whether it exists and is no zombie: in a container no one may collect it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "--images=: no such folder; wanted the one with the images"),
    (["/nowhere"], "--images=/nowhere: no such folder"),
    (["--model_name=ssd300-resnet34", "tests"], "unexpected argument"),
    (["tests", "--model_name=ssd300-resnet34"], "wanted one of EfficientDet's"),
    (["tests", "--formats=tflight"], "--formats=tflight: wanted some of onnx"),
    (["tests", "--minutes=0"], "minutes"),
    (["tests", "--minutes=inf"], "--minutes=inf: wanted a finite number"),
    (["tests", "--weights=/nowhere"], "--weights=/nowhere"),
])
def test_mistakes_are_one_line(arguments, message, tmp_path):
    ended = subprocess.run([sys.executable, ROOT / "quickstart.py", *arguments, f"--output_dir={tmp_path}"], cwd=ROOT,
                           capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_whole_way(tmp_path):
    draw_data_set(tmp_path / "drawn", images={"train": 8}, image_size=(64, 96))
    command = [sys.executable, ROOT / "quickstart.py", tmp_path / "drawn" / "train", "--minutes=0.1", "--weights=none",
               f"--annotations={tmp_path}/drawn/annotations/instances_train.json", f"--output_dir={tmp_path}/out",
               "--hparams=max_level=5,fpn_cell_repeats=1,box_class_repeats=1,image_size=64"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for path in ("doctor/doctor.html", "model/report.html", "evaluation/report.html", "exported/detector.onnx"):
        assert (tmp_path / "out" / path).exists()
    assert "in the browser:   python serve.py --model=" in ended.stdout
