import json
from unittest.mock import Mock, call

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from efficientdet.run_log.loggers import JsonLines, open_loggers
from program_support.errors import InputError

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def use(opened):
    for logger in opened:
        logger.scalars(3, {"train/loss": 1.5})
        logger.images(3, {"detections/0": PICTURE})
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


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    return pytest.importorskip("wandb")


@pytest.fixture
def mlflow(monkeypatch):
    package = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield package
    package.set_tracking_uri(None)


@pytest.mark.usefixtures("wandb")
def test_wandb_offline(tmp_path):
    use(open_loggers(["wandb"], tmp_path / "run", settings={"lr": 0.1}))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/files/media/images/detections/*.png"))


def test_wandb_keeps_what_is_logged_again_after_a_rollback(tmp_path, wandb):
    [logger] = open_loggers(["wandb"], tmp_path / "run", settings={})
    logger.scalars(20, {"train/loss": 2.0})
    logger.scalars(10, {"train/loss": 3.0})
    assert (wandb.run.summary["step"], wandb.run.summary["train/loss"]) == (10, 3.0)
    logger.close()


def test_wandb_draws_over_our_steps(tmp_path, monkeypatch, wandb):
    run = Mock()
    init = Mock(return_value=run)
    monkeypatch.setattr(wandb, "init", init)
    [logger] = open_loggers(["wandb"], tmp_path, settings={}, project="retina")
    assert init.call_args.kwargs["project"] == "retina"
    logger.scalars(20, {"train/loss": 2.0})
    assert run.mock_calls == [
        call.define_metric("step"),
        call.define_metric("*", step_metric="step"),
        call.log({"step": 20, "train/loss": 2.0}),
    ]


def test_wandb_refuses(tmp_path, monkeypatch, wandb):
    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match=r"^--loggers=wandb: No API key configured\. Use `wandb login` to log in\.$"):
        open_loggers(["wandb"], tmp_path, settings={})


def test_mlflow_in_a_folder(tmp_path, mlflow):
    use(open_loggers(["mlflow"], tmp_path / "run", settings={"lr": 0.1}, project="retina"))
    assert mlflow.get_experiment_by_name("retina")
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.metrics["train/loss"] == 0.5
    assert run.data.params["lr"] == "0.1"
    assert list((tmp_path / "run" / "mlruns").rglob("detections/0-3.png"))


def test_mlflow_in_a_folder_of_the_users(tmp_path, monkeypatch, mlflow):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/all_runs")
    use(open_loggers(["mlflow"], tmp_path / "run", settings={}))
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.run_name == "run"
    assert (tmp_path / "all_runs").is_dir()
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.usefixtures("mlflow")
def test_mlflow_refuses(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "paper://desk")
    with pytest.raises(InputError, match=r"^--loggers=mlflow: .*'paper://desk'.*$"):
        open_loggers(["mlflow"], tmp_path, settings={})


def test_unknown_and_missing(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--loggers names 'paper'; expected any of tensorboard, json, wandb, mlflow"):
        open_loggers(["json", "paper"], tmp_path, settings={})
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match=r"--loggers=wandb: wandb is not installed: pip install -e '\.\[wandb\]'"):
        open_loggers(["wandb"], tmp_path, settings={})


def test_the_extra_is_the_loggers_though_another_package_is_missing(tmp_path, monkeypatch):
    def lacks(*_):
        raise ModuleNotFoundError("No module named 'sentry'", name="sentry")

    monkeypatch.setattr("efficientdet.run_log.loggers.WeightsAndBiases", lacks)
    with pytest.raises(InputError, match=r"--loggers=wandb: sentry is not installed: pip install -e '\.\[wandb\]'"):
        open_loggers(["wandb"], tmp_path, settings={})


def test_when_one_is_missing_the_others_are_closed(tmp_path, monkeypatch):
    close, closed = JsonLines.close, []
    monkeypatch.setattr(JsonLines, "close", lambda logger: closed.append(close(logger)))
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError):
        open_loggers(["json", "wandb"], tmp_path, settings={})
    assert closed == [None]


def test_a_name_given_twice_is_one_logger(tmp_path):
    [logger] = open_loggers(["json", "json"], tmp_path, settings={})
    logger.close()
