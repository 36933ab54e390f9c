import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from standins import install
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from efficientdet.run_log.journal import Journal
from efficientdet.run_log.loggers import JsonLines, check_loggers, loggers, open_loggers
from program_support.errors import InputError

PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


def config(*names, **hparams):
    """A stand-in of TrainingConfig."""
    family = SimpleNamespace(name="retina", mlperf={})
    return SimpleNamespace(
        loggers=names,
        benchmark=False,
        mlperf_log=None,
        mlperf_submission=(),
        hparams=SimpleNamespace(family=family, to_dict=lambda: hparams),
    )


def use(opened):
    for logger in opened:
        logger.scalars(3, {"train/loss": 1.5})
        logger.images(3, {"detections/0": PICTURE})
        logger.scalars(6, {"train/loss": 0.5})
        logger.close()
        logger.close()


def test_lines_of_json(tmp_path):
    use(open_loggers(config("json", "json"), tmp_path))
    [again] = open_loggers(config("json"), tmp_path)
    again.scalars(9, {"a": float("nan")})
    again.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 3, "train/loss": 1.5}, {"step": 6, "train/loss": 0.5}, {"step": 9, "a": "nan"}]


def test_tensorboard_has_curves_and_pictures(tmp_path):
    use(open_loggers(config("tensorboard"), tmp_path))
    [file] = tmp_path.glob("events.*")
    first, *events = EventFileLoader(str(file)).Load()
    assert first.file_version == "brain.Event:2"
    values = [value for event in events for value in event.summary.value]
    assert [event.step for event in events] == [3, 3, 6]
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


def test_wandb_offline_keeps_what_is_logged_again_after_a_rollback(tmp_path, wandb):
    [logger] = open_loggers(config("wandb", lr=0.1), tmp_path / "run")
    logger.scalars(20, {"train/loss": 2.0})
    logger.images(20, {"detections/0": PICTURE})
    logger.scalars(10, {"train/loss": 3.0})
    assert (wandb.run.summary["step"], wandb.run.summary["train/loss"]) == (10, 3.0)
    logger.close()
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/files/media/images/detections/*.png"))


def test_wandb_refuses(tmp_path, monkeypatch, wandb):
    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match=r"^--loggers=wandb: No API key configured\. Use `wandb login` to log in\.$"):
        open_loggers(config("wandb"), tmp_path)


def test_mlflow_in_a_folder(tmp_path, mlflow):
    use(open_loggers(config("mlflow", lr=0.1), tmp_path / "run"))
    assert mlflow.get_experiment_by_name("retina")
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.data.metrics["train/loss"] == 0.5
    assert run.data.params["lr"] == "0.1"
    assert list((tmp_path / "run" / "mlruns").rglob("detections/0-3.png"))


def test_mlflow_in_a_folder_of_the_users(tmp_path, monkeypatch, mlflow):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/all_runs")
    use(open_loggers(config("mlflow"), tmp_path / "run"))
    [run] = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert run.info.run_name == "run"
    assert (tmp_path / "all_runs").is_dir()
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.usefixtures("mlflow")
def test_mlflow_refuses(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "paper://desk")
    with pytest.raises(InputError, match=r"^--loggers=mlflow: .*'paper://desk'.*$"):
        open_loggers(config("mlflow"), tmp_path)


def test_unknown_names():
    with pytest.raises(
        InputError, match="--loggers names 'paper'; expected any of tensorboard, json, wandb, mlflow, mlperf"
    ):
        check_loggers(config("json", "paper"))
    with pytest.raises(InputError, match="--loggers names mlperf; expected --mlperf_log=FILE"):
        check_loggers(config("mlperf"))


def test_when_a_package_is_missing_the_other_loggers_are_closed(tmp_path, monkeypatch):
    close, closed = JsonLines.close, []
    monkeypatch.setattr(JsonLines, "close", lambda logger: closed.append(close(logger)))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"--loggers=wandb: wandb is not installed: pip install -e '\.\[wandb\]'"):
        open_loggers(config("json", "wandb"), tmp_path)
    assert closed == [None]


PAPER = """
from efficientdet.run_log.loggers import Logger

class Paper(Logger):
    name = "paper"

    def __init__(self, config, folder):
        self._page = (folder / "page.txt").open("w")

    def scalars(self, step, values):
        print(step, values, file=self._page)

    def event(self, name, facts):
        print(name, facts, file=self._page)

    def close(self):
        self._page.close()
"""


def test_a_logger_of_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "paper.py").write_text(PAPER)
    install(tmp_path, "efficientdet.loggers", ["paper = paper:Paper"])
    monkeypatch.syspath_prepend(str(tmp_path))
    loggers.cache_clear()
    try:
        check_loggers(config("paper"))
        with Journal(tmp_path, loggers=open_loggers(config("paper"), tmp_path)) as journal:
            journal.curves(4, {"train/loss": 1.0})
            journal.event("epoch_started", epoch=2)
    finally:
        loggers.cache_clear()
    assert (tmp_path / "page.txt").read_text() == "4 {'train/loss': 1.0}\nepoch_started {'epoch': 2}\n"
