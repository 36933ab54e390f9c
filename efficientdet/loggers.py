"""Where curves and pictures of a run go: TensorBoard, lines of JSON, Weights & Biases, MLflow."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from object_detection.errors import InputError

LOGGERS = ("tensorboard", "json", "wandb", "mlflow")
JSON_FILE_NAME = "metrics.jsonl"


class Logger(Protocol):
    """One destination."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Values by tag, after `step` steps."""

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        """uint8 [h, w, 3] by tag."""

    def close(self) -> None:
        """Write what is left; a second call does nothing."""


def open_loggers(names: Sequence[str], folder: str | Path, *, settings: Mapping[str, Any]) -> list[Logger]:
    """The loggers of these names for a run in `folder`, told its `settings`.

    Raises InputError for an unknown name, or where the package of one is not installed.
    """
    unknown = [name for name in names if name not in LOGGERS]
    if unknown:
        raise InputError(f"--loggers names {unknown[0]!r}; wanted any of {', '.join(LOGGERS)}")
    try:
        return [_open(name, Path(folder), settings) for name in names]
    except ImportError as error:
        raise InputError(f"--loggers={','.join(names)}: {error.name} is not installed: pip install -e '.[{error.name}]'") \
            from error


def _open(name: str, folder: Path, settings: Mapping[str, Any]) -> Logger:
    if name == "tensorboard":
        from efficientdet.event_file import EventFile  # needs TensorBoard, which a log without curves does not

        return EventFile(folder)
    return {"json": JsonLines, "wandb": WeightsAndBiases, "mlflow": Mlflow}[name](folder, settings)


class JsonLines:
    """One JSON object a line: `{"step": 10, "train/loss": 1.5, ..}`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
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

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._wandb = wandb
        self._run = wandb.init(project="efficientdet", name=folder.name, dir=str(folder), config=dict(settings))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=int(step))

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        self._run.log({tag: self._wandb.Image(image) for tag, image in pictures.items()}, step=int(step))

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI or, without one, in the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]):
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            # A folder needs no database driver; MLflow wants it said that one means it.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            mlflow.set_tracking_uri(f"file:{folder.resolve()}/mlruns")
        self._mlflow = mlflow
        mlflow.set_experiment("efficientdet")
        mlflow.start_run(run_name=folder.name)
        mlflow.log_params({key: str(value)[:500] for key, value in settings.items()})

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics({tag: float(value) for tag, value in values.items()}, step=int(step))

    def pictures(self, step: int, pictures: Mapping[str, np.ndarray]) -> None:
        for tag, image in pictures.items():
            self._mlflow.log_image(image, f"{tag}-{step}.png")

    def close(self) -> None:
        if self._mlflow.active_run():
            self._mlflow.end_run()
