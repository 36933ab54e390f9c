"""Records, a training's folder and an exported file that commit c0d5f6d wrote; see testdata/README.md."""

import functools
import json
import shutil
import tarfile
from pathlib import Path

import miniature
import numpy as np
import pytest

import efficientdet
from dataset.class_names import read_class_names
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import read_arrays
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.evaluation.evaluate import EvaluationConfig, evaluate_checkpoint
from efficientdet.exports import saved_model
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training import loop
from efficientdet.training import state as training_state

STEPS, ALL_STEPS = 596, 602  # done when a signal ended the training, and with those that it lacked


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(Path(__file__).parent.parent / "testdata" / "c0d5f6d.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    """Detections, measures and changes of weights that the program of that commit computed."""
    return json.loads((folder / "expected.json").read_text())


@pytest.fixture(autouse=True)
def network(monkeypatch):
    monkeypatch.setattr(
        miniature, "miniature_detector", functools.partial(miniature.miniature_detector, pyramid_filters=8)
    )
    for module in (training_state, restore):
        monkeypatch.setattr(module, "build_detector", miniature.build_miniature)
    monkeypatch.setattr(saved_model, "export_saved_model", lambda *_, **__: None)


@pytest.mark.parametrize("name", ["model/ckpt-596", "model", "detector.onnx"])
def test_detects(folder, expected, name):
    [found] = efficientdet.load_detector(folder / name).predict(folder / "image.jpg", min_score=0.0)
    earlier = expected["detected"]["detector.onnx" if name == "detector.onnx" else "ckpt-596"]
    np.testing.assert_allclose(found.scores[:10], earlier["scores"], atol=1e-4)
    np.testing.assert_allclose(found.boxes[:10], earlier["boxes"], atol=0.02)
    assert [*found.names[:10]] == earlier["names"]


def test_evaluates(folder, expected):
    measures = evaluate_checkpoint(
        EvaluationConfig(
            model=ModelConfig(ckpt_path=str(folder / "model" / "ckpt-596")),
            records=tuple(sorted(map(str, folder.glob("train-*.tfrecord")))),
        )
    )
    assert measures.numbers == pytest.approx(expected["metrics"], abs=1e-3)
    assert measures.numbers["AP"] > 0.7


def test_resumes(folder, expected, tmp_path):
    model = shutil.copytree(folder / "model", tmp_path / "model")
    earlier = read_arrays(str(folder / "model" / "ckpt-596"))
    config = json.loads((folder / "model" / "config.json").read_text())
    loop.train(
        TrainingConfig(
            hparams=hyperparameters_of("efficientdet-d0", config["hparams"]),
            class_names=read_class_names(folder / "model" / "classes.json"),
            records=tuple(sorted(map(str, folder.glob("train-*.tfrecord")))),
            val_records=(),
            val_json_file=None,
            model_dir=str(model),
            batch_size=3,
            checkpoint_period=300,
            calibration_images=0,
            precision="float32",
            use_xla=False,
        )
    )
    resumed = read_arrays(str(model / "ckpt-final"))
    assert (earlier["global_step"], resumed["global_step"]) == (STEPS, ALL_STEPS)
    for name, change in expected["changes"].items():
        assert np.linalg.norm(resumed[name] - earlier[name]) == pytest.approx(change, rel=0.02, abs=1e-7), name
