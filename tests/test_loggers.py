import json

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from efficientdet.event_file import EventFile, read_scalars
from efficientdet.loggers import open_loggers
from object_detection.errors import InputError

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def use(loggers):
    for logger in loggers:
        logger.scalars(3, {"train/loss": 1.5})
        logger.pictures(3, {"detections/0": PICTURE})
        logger.scalars(6, {"train/loss": 0.5})
        logger.close()
        logger.close()


def test_lines_of_json(tmp_path):
    use(open_loggers(["json"], tmp_path, settings={}))
    [again] = open_loggers(["json"], tmp_path, settings={})
    again.scalars(9, {"a": float("nan")})
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 3, "train/loss": 1.5}, {"step": 6, "train/loss": 0.5}, {"step": 9, "a": "nan"}]


def test_tensorboard_has_curves_and_pictures(tmp_path):
    use(open_loggers(["tensorboard"], tmp_path, settings={}))
    [file] = tmp_path.glob("events.*")
    values = [value for event in EventFileLoader(str(file)).Load() for value in event.summary.value]
    assert [value.tag for value in values] == ["train/loss", "detections/0", "train/loss"]
    assert any(b"PNG" in item for item in values[1].tensor.string_val)


def test_curves_come_back_and_a_repeated_step_counts_once(tmp_path):
    for values in ({1: 5.0, 2: 4.0}, {2: 3.0, 3: 2.0}):  # the second run went on from step 1
        file = EventFile(tmp_path)
        for step, value in values.items():
            file.scalars(step, {"a": value})
        file.close()
    assert read_scalars(tmp_path) == {"a": [(1, 5.0), (2, 3.0), (3, 2.0)]}
    assert read_scalars(tmp_path / "nothing") == {}


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    use(open_loggers(["wandb"], tmp_path / "run", settings={"lr": 0.1}))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))


def test_mlflow_in_a_folder(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    use(open_loggers(["mlflow"], tmp_path / "run", settings={"lr": 0.1}))
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.metrics["train/loss"] == 0.5
    assert run.data.params["lr"] == "0.1"


def test_unknown_and_missing(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--loggers names 'paper'; wanted any of tensorboard, json, wandb, mlflow"):
        open_loggers(["json", "paper"], tmp_path, settings={})
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match=r"--loggers=wandb: wandb is not installed: pip install -e '\.\[wandb\]'"):
        open_loggers(["wandb"], tmp_path, settings={})
