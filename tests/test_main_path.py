"""The real programs on the real network: records -> train.py -> eval.py -> infer.py, each a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records

from object_detection.coco.results import TESTDEV_FILE_NAME

ROOT = Path(__file__).resolve().parent.parent


def call(script, *arguments):
    """Run a program as a user starts it."""
    return checked(
        subprocess.run(
            [sys.executable, str(ROOT / script), *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        )
    )


def checked(done):
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    drawn = draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 8, "val": 4})
    model_dir = tmp_path_factory.mktemp("model")
    done = call(
        "train.py",
        f"--training_file_pattern={drawn.folder}/train-*.tfrecord",
        f"--val_file_pattern={drawn.folder}/val-*.tfrecord",
        f"--model_dir={model_dir}",
        "--batch_size=4",
        "--eval_batch_size=4",
        "--num_epochs=1",
        "--lr=0.001",
        # The published backbone, one cell, heads of one layer: test_efficientdet.py compares the complete network.
        # Gaussian suppression multiplies a score by a factor for each of up to 100 boxes: it amplifies the last bits.
        "--hparams=image_size=64,fpn_cell_repeats=1,box_class_repeats=1,nms_configs.method=hard",
        "--precision=float32",
        "--use_xla=false",
        f"--testdev_dir={model_dir}/submission",
    )
    return drawn, model_dir, done


def test_train(trained):
    _, model_dir, done = trained
    assert "AP50" in done.stdout
    assert "ETA" in done.stderr
    for name in (
        "ckpt-final.index",
        "emackpt-final/saved_model.pb",
        "time_log.txt",
        "config.json",
        "classes.json",
        "metrics-final.json",
    ):
        assert (model_dir / name).is_file(), name


def results(folder):
    """Rows of a submission: image, category, score, box."""
    entries = json.loads((folder / TESTDEV_FILE_NAME).read_text())
    return np.array([[entry["image_id"], entry["category_id"], entry["score"], *entry["bbox"]] for entry in entries])


def test_eval_finds_what_training_found(trained, tmp_path):
    drawn, model_dir, _ = trained
    done = call(
        "eval.py",
        f"--ckpt={model_dir}",
        f"--val_file_pattern={drawn.folder}/val-*.tfrecord",
        "--batch_size=4",
        f"--output_json={tmp_path}/numbers.json",
        "--precision=float32",
        "--use_xla=false",
        f"--testdev_dir={tmp_path}",
    )
    assert "AP50" in done.stdout
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["images"] == 4
    assert numbers == json.loads((model_dir / "metrics-final.json").read_text())
    # A network of two steps has no AP to compare: its detections are.
    found, wanted = (results(folder) for folder in (tmp_path, model_dir / "submission"))
    assert len(found) == numbers["detections"] > 0
    assert found[:, 0].tolist() == wanted[:, 0].tolist()
    np.testing.assert_allclose(found[:, 2], wanted[:, 2], rtol=1e-3)
    # The last bits of a sum move with the machine's load, and this network's outputs amplify them: of two that score
    # alike either may come first.
    for image, _, score, *box in found:
        alike = wanted[(wanted[:, 0] == image) & np.isclose(wanted[:, 2], score, rtol=1e-3)]
        assert np.abs(alike[:, 3:] - box).max(axis=1).min() <= 1.0
    assert np.ptp(found[:, 2]) > 1e-4  # scores that say something


def test_infer_from_the_exported_model(trained, tmp_path):
    drawn, model_dir, _ = trained
    call(
        "infer.py",
        f"--image_path={drawn.folder}/val",
        f"--saved_model_dir={model_dir}/emackpt-final",
        f"--output_dir={tmp_path}/new/out",
        "--min_score_thresh=0.01",
    )
    images = sorted(path.name for path in (drawn.folder / "val").glob("*.jpg"))
    assert sorted(path.name for path in (tmp_path / "new" / "out").glob("[!.]*")) == [*images, "detections.json"]
