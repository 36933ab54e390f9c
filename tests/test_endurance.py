"""A training by the complete train.py, killed at random moments and resumed (--endurance)."""

import os
import random
import signal
import sys
import time

import forked_programs
import pytest
from drawn_records import draw_records
from miniature_programs import ROOT, path_to_miniature

from efficientdet.checkpoints.checkpoint import read_arrays

SETTINGS = (
    "--batch_size=4 --eval_batch_size=2 --num_epochs=6 --eval_period=1 --checkpoint_period=2 --checkpoint_steps=3 "
    "--calibration_images=8 --deterministic=True --warmup_epochs=1 --lr=0.02 "
    "--hparams=image_size=64,jitter_min=0.8,jitter_max=1.2,moving_average_decay=0.9"
)


def start(data, folder):
    files = [f"--training_file_pattern={data}/train-*", f"--val_file_pattern={data}/val-*", f"--model_dir={folder}"]
    env = {**os.environ, "PYTHONPATH": path_to_miniature(data), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, ROOT / "train.py", *files, *SETTINGS.split()]
    return forked_programs.start(command, env=env, cwd=data, output=data / "output.txt")


def result(folder):
    """Return the bits of the final weights and moving averages, and the metrics."""
    arrays = {name: array.tobytes() for name, array in read_arrays(str(folder / "ckpt-final")).items()}
    return arrays, {file.name: file.read_text() for file in folder.glob("metrics-*.json")}


@pytest.mark.slow
def test_a_killed_training_ends_with_the_same_numbers(tmp_path, request):
    if not request.config.getoption("--endurance"):
        pytest.skip("needs --endurance")
    draw_records(tmp_path, images={"train": 16, "val": 4})
    began = time.monotonic()
    assert start(tmp_path, tmp_path / "whole").wait(timeout=600) == 0, (tmp_path / "output.txt").read_text()
    seconds, chance, kills = time.monotonic() - began, random.Random(1), 0
    for _ in range(4):
        process = start(tmp_path, tmp_path / "killed")
        time.sleep(chance.uniform(0.3, 0.9) * seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert start(tmp_path, tmp_path / "killed").wait(timeout=600) == 0, (tmp_path / "output.txt").read_text()
    assert kills
    assert result(tmp_path / "killed") == result(tmp_path / "whole")
