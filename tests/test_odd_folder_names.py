"""Programs in a folder whose name has every character that a function may take for a pattern."""

import contextlib
import json
import sys
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from standins import environment

from dataset.synthetic import draw_data_set
from efficientdet.plugins.streams.video_files import VideoFile
from efficientdet.plugins.streams.video_source import read_frames
from program_support.file_patterns import matching_paths, without_magic

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
NAME = "a [b] {c} *?'\" ü \\n %d #1"
MODEL = {"model_name": "plain-dense"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd") / NAME
    draw_data_set(folder / "images", images={"train": 12, "val": 4}, image_size=(64, 64), seed=1)
    return folder


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    return {**environment(tmp_path_factory.mktemp("site")), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def call(env, folder, script, **flags):
    """Run a program in the folder, with every path relative to it, and return what it printed."""
    words = [f"--{name}={value}" for name, value in flags.items()]
    program = [sys.executable, str(ROOT / script), *words]
    done = forked_programs.run(program, env=env, cwd=folder, executable=forked_programs.python())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def quick(folder, env):
    """Return the folder of a quick start, which converts, checks, trains, evaluates and exports there."""
    call(env, folder, "quickstart.py", images=folder / "images", output_dir=folder / "quick", minutes=0.1, **MODEL)
    return folder / "quick"


def test_quickstart(quick):
    assert (quick / "exported" / "detector.onnx").exists()


def test_other_programs(quick, folder, env):
    """With patterns in which the folder's name is not escaped, as a user writes them."""
    at = folder
    records, weights = {"val_file_pattern": f"{quick}/records/val-*"}, f"{at}/model"
    call(
        env,
        at,
        "train.py",
        training_file_pattern=f"{quick}/records/train-*",
        model_dir=weights,
        batch_size=4,
        num_epochs=1,
        use_xla=False,
        **records,
        **MODEL,
    )
    relative = {"ckpt": "model/ckpt-final", "val_file_pattern": "quick/records/val-*"}
    call(env, at, "eval.py", report=at / "evaluation", use_xla=False, **relative)
    drawn = {"image_path": at / "images" / "val", "min_score_thresh": 0.01}
    call(env, at, "infer.py", model_dir=weights, output_dir=at / "drawn", **drawn)
    call(env, at, "infer.py", saved_model_dir=f"{weights}/emackpt-final", output_dir=at / "saved", **drawn)
    found = [json.loads((at / name / "detections.json").read_text()) for name in ("drawn", "saved")]
    assert len(found[0]) == len(found[1]) > 0
    call(env, at, "export.py", ckpt=weights, output_dir=at / "exported", formats="onnx,openvino", **records)
    call(env, at, "infer.py", model=f"{at}/exported/detector.xml", output_dir=at / "openvino", **drawn)
    call(env, at, "next_images.py", model=weights, images=at / "images" / "train", count=2, output_dir=at / "next")
    call(env, at, "inspector.py", mode="export", ckpt_path=weights, saved_model_dir=at / "inspected", use_xla=False)
    compared = [weights, f"{at}/exported/detector.onnx"]
    words = [*compared, f"--output_dir={at}/compared", f"--val_file_pattern={quick}/records/val-*"]
    done = forked_programs.run([sys.executable, str(ROOT / "compare.py"), *words], env=env, cwd=at)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert json.loads((at / "compared" / "compare.json").read_text())


def test_names_and_patterns(tmp_path):
    folder = tmp_path / NAME
    folder.mkdir()
    for name in ("x-1", "x-2", "y[1]"):
        (folder / name).touch()
    assert matching_paths(f"{folder}/x-*") == [f"{folder}/x-1", f"{folder}/x-2"]
    assert matching_paths(f"{tmp_path}/*/x-[1]") == [f"{folder}/x-1"]
    assert matching_paths(f"{folder}/y[1]") == [f"{folder}/y[1]"]
    assert matching_paths(f"{folder}/z-*") == []
    with without_magic(folder / "x-1") as name:
        assert Path(name).exists()
        assert not {*name} & {*"*?[\\"}
    assert not Path(name).exists()


def test_videos(tmp_path, monkeypatch):
    """FFmpeg takes the beginning of a relative name for a protocol."""
    monkeypatch.chdir(tmp_path)
    target = Path("12:30 [b] %d.mp4")
    with contextlib.closing(VideoFile(target, 5)) as video:
        for shade in range(3):
            video.write(np.full((64, 64, 3), shade, np.uint8))
        video.complete()
    assert len([*read_frames(str(target))]) == 3
