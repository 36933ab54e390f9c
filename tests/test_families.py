"""Families of other packages go through the real programs: trained, evaluated, exported."""

import json
import sys
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from drawn_records import draw_records
from standins import STANDINS, environment

from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from object_detection.coco.results import TESTDEV_FILE_NAME

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
EPOCHS, STEPS_AN_EPOCH = 25, 4


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 4 * STEPS_AN_EPOCH, "val": 4})


@pytest.fixture(scope="module", params=STANDINS)
def model_name(request):
    return request.param


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return {**environment(tmp_path_factory.mktemp("site")), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def call(env, *scripts, **flags):
    """Run a program, or one that runs another, and return its standard output."""
    command = [
        sys.executable,
        *(ROOT / script for script in scripts),
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
    done = forked_programs.run(command, env=env)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def export_agrees(env, *scripts, **flags):
    """Export a SavedModel, whose detections are all those of the checkpoint."""
    told = call(env, *scripts, formats="savedmodel", **flags)
    assert told.count(": 100.0% of ") == told.count("detections agree") == 1


def training(drawn, model_name, model_dir, **changes):
    """Flags of a training of so many short epochs, the same bits each time."""
    return {
        "model_name": model_name,
        "training_file_pattern": f"{drawn.folder}/train-*.tfrecord",
        "model_dir": model_dir,
        "training_mode": "train300",
        "batch_size": 4,
        "num_epochs": EPOCHS,
        "lr": 0.02,
        "checkpoint_period": EPOCHS,
        "checkpoint_steps": 10,
        "precision": "float32",
        "use_xla": False,
        "deterministic": True,
        "loggers": "json",
        **changes,
    }


@pytest.fixture(scope="module")
def trained(drawn, model_name, env, tmp_path_factory):
    """Folder of a training without accidents, evaluated at its end."""
    folder = tmp_path_factory.mktemp(model_name) / "model"
    call(env, "train.py", **training(drawn, model_name, folder))
    return folder


def losses_in(model_dir):
    """The loss of each epoch, regularization included."""
    lines = [json.loads(line.removeprefix("DLLL ")) for line in (model_dir / "time_log.txt").read_text().splitlines()]
    return [line["data"]["train/loss"] for line in lines if "train/loss" in line.get("data", {})]


def test_it_learns(trained, model_name):
    losses = losses_in(trained)
    assert len(losses) == EPOCHS
    print(f"{model_name}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:5])
    assert read_arrays(str(trained / "ckpt-final"))["global_step"] == EPOCHS * STEPS_AN_EPOCH
    assert read_description(str(trained / "ckpt-final")).model_name == model_name


def test_it_is_evaluated_drawn_and_exported(drawn, env, trained, tmp_path):
    records, weights = f"{drawn.folder}/val-*.tfrecord", {"ckpt_path": trained}
    found = {}
    for runtime in ("keras", "onnxruntime"):
        call(
            env,
            "eval.py",
            **weights,
            val_file_pattern=records,
            batch_size=4,
            runtime=runtime,
            use_xla=False,
            precision="float32",
            output_json=tmp_path / f"{runtime}.json",
            testdev_dir=tmp_path / runtime,
        )
        entries = json.loads((tmp_path / runtime / TESTDEV_FILE_NAME).read_text())
        found[runtime] = np.array(
            [[entry["image_id"], entry["category_id"], entry["score"], *entry["bbox"]] for entry in entries]
        )
    ours, theirs = (json.loads((tmp_path / f"{runtime}.json").read_text()) for runtime in found)
    for by_class in ("class_ap", "class_objects"):
        assert ours.pop(by_class) == pytest.approx(theirs.pop(by_class), abs=1e-6)
    of_theirs = theirs.pop("intervals")
    for values, ends in ours.pop("intervals").items():
        assert ends.keys() == of_theirs[values].keys()
        np.testing.assert_allclose([*ends.values()], [*of_theirs[values].values()], atol=1e-6)
    thresholds = [numbers.pop("score_thresholds") for numbers in (ours, theirs)]
    assert thresholds[0].get("overall") == pytest.approx(
        thresholds[1].get("overall"), abs=2e-4
    )  # stored with 4 decimals
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert ours["images"] == 4
    assert len(found["keras"]) == ours["detections"] > 4
    np.testing.assert_array_equal(found["keras"][:, :2], found["onnxruntime"][:, :2])
    np.testing.assert_allclose(found["keras"][:, 2:], found["onnxruntime"][:, 2:], rtol=1e-3, atol=0.02)
    export_agrees(env, "export.py", ckpt=trained, output_dir=tmp_path / "exported", images=drawn.folder / "val")
    call(
        env,
        "infer.py",
        model_dir=trained,
        image_path=drawn.folder / "val",
        output_dir=tmp_path / "drawn",
        min_score_thresh=0.01,
    )
    assert len(json.loads((tmp_path / "drawn" / "detections.json").read_text())) > 0
    assert len(list((tmp_path / "drawn").glob("*.jpg"))) == 4
