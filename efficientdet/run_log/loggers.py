"""Where curves and images of a run go: TensorBoard, lines of JSON, Weights & Biases, MLflow."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from program_support.errors import InputError

LOGGERS = ("tensorboard", "json", "wandb", "mlflow")
JSON_FILE_NAME = "metrics.jsonl"
DEFAULT_PROJECT = "efficientdet"  # this program's name


class Logger(Protocol):
    """A place that curves and images of one run are written to."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write values by tag such as "train/loss", as they are after `step` steps."""

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Write images by tag, each uint8 [h, w, 3]."""

    def close(self) -> None:
        """Write what is left; a second call does nothing."""


class EventListener(Protocol):
    """Another log that is made from the events of a run."""

    def event(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write what the log has of an event, if anything."""

    def close(self) -> None:
        """Write what is left; a second call does nothing."""


def check_logger_names(names: Sequence[str]) -> None:
    """Raises InputError for one that does not exist."""
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"--loggers names {name!r}; expected any of {', '.join(LOGGERS)}")


def open_loggers(
    names: Sequence[str], folder: str | Path, *, settings: Mapping[str, Any], project: str = DEFAULT_PROJECT
) -> list[Logger]:
    """The loggers of these names for a run in `folder`, told its `settings`; `project` is what wandb and MLflow file it under.

    Raises InputError for an unknown name, or where one cannot be opened; those opened before it are closed then.
    """
    check_logger_names(names)
    with contextlib.ExitStack() as opened:
        loggers = [opened.enter_context(contextlib.closing(_open(name, Path(folder), settings, project)))
                   for name in dict.fromkeys(names)]
        opened.pop_all()  # all are open, and stay so
    return loggers


def _open(name: str, folder: Path, settings: Mapping[str, Any], project: str) -> Logger:
    """The logger of that name. Raises InputError where its package is missing."""
    if name == "tensorboard":
        from efficientdet.run_log.event_file import EventFile  # needs TensorBoard, which a log without curves does not

        return EventFile(folder)
    try:
        if name == "json":
            return JsonLines(folder)
        return {"wandb": WeightsAndBiases, "mlflow": Mlflow}[name](folder, settings, project)
    except ImportError as error:
        raise InputError(f"--loggers={name}: {error.name or error} is not installed: pip install -e '.[{name}]'") from error


class JsonLines:
    """metrics.jsonl in the folder, a JSON object a line: `{"step": 10, "train/loss": 1.5, ..}`; images are left out."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / JSON_FILE_NAME).open("a", encoding="utf-8", buffering=1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        numbers = {tag: float(value) if np.isfinite(value) else str(value) for tag, value in values.items()}
        self._stream.write(json.dumps({"step": int(step), **numbers}) + "\n")

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        """Lines of numbers have no place for them."""

    def close(self) -> None:
        self._stream.close()


class WeightsAndBiases:
    """A run of wandb; WANDB_MODE=offline writes into the folder alone."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str):
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        try:
            self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=dict(settings))
        except wandb.Error as error:
            raise InputError(f"--loggers=wandb: {_one_line(error)}") from error
        # wandb's own step only grows: it would drop what a training logs again after a rollback.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": int(step), **values})

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        self._run.log({"step": int(step), **{tag: self._wandb.Image(image) for tag, image in pictures.items()}})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or, without one, in the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str):
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        # A folder needs no database driver; MLflow wants it said that one means it.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"file:{folder.resolve()}/mlruns")
        self._mlflow = mlflow
        try:
            mlflow.set_experiment(project)
            mlflow.start_run(run_name=folder.name)
            mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})
        except mlflow.exceptions.MlflowException as error:
            self.close()
            raise InputError(f"--loggers=mlflow: {_one_line(error)}") from error

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({tag: float(value) for tag, value in values.items()}, step=int(step))

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        for tag, image in pictures.items():
            self._mlflow.log_image(image, f"{tag}-{step}.png")

    def close(self) -> None:
        if self._mlflow.active_run():
            self._mlflow.end_run()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
