"""Loggers of curves and images: TensorBoard, JSON lines, Weights & Biases, MLflow."""

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
    """Interface of a logger of curves and images of one run."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write values by tag such as "train/loss", after `step` steps."""

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write images by tag, each uint8 [h, w, 3]."""

    def close(self) -> None:
        """Flush and close; a second call does nothing."""


class EventListener(Protocol):
    """Interface of a listener that writes another log from the events of a run."""

    def event(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write the log lines of an event, if any."""

    def close(self) -> None:
        """Flush and close; a second call does nothing."""


def check_logger_names(names: Sequence[str]) -> None:
    """Raise InputError for an unknown logger."""
    for name in names:
        if name not in LOGGERS:
            raise InputError(f"--loggers names {name!r}; expected any of {', '.join(LOGGERS)}")


def open_loggers(
    names: Sequence[str], folder: str | Path, *, settings: Mapping[str, Any], project: str = DEFAULT_PROJECT
) -> list[Logger]:
    """Open loggers by name for a run in `folder`.

    `settings` are the hyperparameters to log; `project` is the project name in wandb and MLflow.

    Raises:
        InputError: for an unknown name or a logger that cannot be opened; the loggers opened before it are closed.
    """
    check_logger_names(names)
    with contextlib.ExitStack() as opened:
        loggers = [
            opened.enter_context(contextlib.closing(_open(name, Path(folder), settings, project)))
            for name in dict.fromkeys(names)
        ]
        opened.pop_all()  # all are open: keep them open
    return loggers


def _open(name: str, folder: Path, settings: Mapping[str, Any], project: str) -> Logger:
    """Open the logger of that name.

    Raises:
        InputError: its package is missing.
    """
    if name == "tensorboard":
        # Imported here: a log without curves does not need TensorBoard.
        from efficientdet.run_log.event_file import EventFile

        return EventFile(folder)
    try:
        if name == "json":
            return JsonLines(folder)
        if name == "wandb":
            return WeightsAndBiases(folder, settings, project)
        return Mlflow(folder, settings, project)
    except ImportError as error:
        raise InputError(
            f"--loggers={name}: {error.name or error} is not installed: pip install -e '.[{name}]'"
        ) from error


class JsonLines:
    """Writer of metrics.jsonl, one JSON object per line: `{"step": 10, "train/loss": 1.5, ..}`; without images."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / JSON_FILE_NAME).open("a", encoding="utf-8", buffering=1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        numbers = {tag: float(value) if np.isfinite(value) else str(value) for tag, value in values.items()}
        self._stream.write(json.dumps({"step": int(step), **numbers}) + "\n")

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Ignore images."""

    def close(self) -> None:
        self._stream.close()


class WeightsAndBiases:
    """A run of wandb; WANDB_MODE=offline writes only into the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str):
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        try:
            self._run = wandb.init(project=project, name=folder.name, dir=str(folder), config=dict(settings))
        except wandb.Error as error:
            raise InputError(f"--loggers=wandb: {_one_line(error)}") from error
        # wandb's own step must increase: it would drop steps that a training repeats after a rollback.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": int(step), **values})

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        self._run.log({"step": int(step), **{tag: self._wandb.Image(image) for tag, image in images.items()}})

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or, by default, in the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], project: str):
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        # A folder needs no database driver; MLflow requires explicit permission for it.
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

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        for tag, image in images.items():
            self._mlflow.log_image(image, f"{tag}-{step}.png")

    def close(self) -> None:
        if self._mlflow.active_run():
            self._mlflow.end_run()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
