"""Loggers of a training: their interface, TensorBoard and JSON lines, and those of plugins, found by name."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from program_support.errors import InputError
from program_support.plugins import load_plugins

GROUP = "efficientdet.loggers"  # of plugins


class Logger:
    """Writer of a log of a training; a subclass writes what it overrides.

    Its module imports what a log needs only when one is opened. Another package provides one by an entry point of the
    group `efficientdet.loggers`.
    """

    name: str  # value of --loggers, and extra of pip

    def __init__(self, config: Any, folder: Path):
        """Open the log of a training with this `TrainingConfig` in a folder, which exists.

        Raises:
            ImportError: a package is missing.
            InputError: the log cannot be written.
        """

    @classmethod
    def is_chosen(cls, config: Any) -> bool:
        """Return whether a `TrainingConfig` asks for this logger."""
        return cls.name in config.loggers and not config.benchmark

    @classmethod
    def check(cls, config: Any) -> None:
        """Check the settings of the logger, before any slow import.

        Raises:
            InputError: it cannot use one of them.
        """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write values by tag such as "train/loss", after `step` steps."""

    def images(self, step: int, images: Mapping[str, np.ndarray]) -> None:
        """Write images by tag, each uint8 [h, w, 3]."""

    def event(self, name: str, facts: Mapping[str, Any]) -> None:
        """Write an event of the training; see `Journal.event`."""

    def close(self) -> None:
        """Flush and close; a second call does nothing."""


class JsonLines(Logger):
    """Writer of metrics.jsonl, one JSON object per line: `{"step": 10, "train/loss": 1.5, ..}`; without images."""

    name = "json"

    def __init__(self, config, folder):
        self._stream = (folder / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)

    def scalars(self, step, values):
        numbers = {tag: float(value) if np.isfinite(value) else str(value) for tag, value in values.items()}
        self._stream.write(json.dumps({"step": int(step), **numbers}) + "\n")

    def close(self):
        self._stream.close()


class EventFile(Logger):
    """Writer of a new event file, without TensorFlow, complete after every write.

    TensorBoard joins the files of a folder, so a resumed run continues its curves.
    """

    name = "tensorboard"

    def __init__(self, config, folder):
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard reads the files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._writer = RecordWriter((folder / name).open("wb"))
        self._write(file_version="brain.Event:2")

    def scalars(self, step, values):
        self._write_summary(step, [{"tag": tag, "simple_value": value} for tag, value in values.items()])

    def images(self, step, images):
        from dataset.files.image_files import encode_image

        self._write_summary(
            step,
            [
                {
                    "tag": tag,
                    "image": {
                        "height": image.shape[0],
                        "width": image.shape[1],
                        "colorspace": image.shape[2],
                        "encoded_image_string": encode_image(image, "PNG"),
                    },
                }
                for tag, image in images.items()
            ],
        )

    def close(self):
        if not self._writer.closed:
            self._writer.close()

    def _write_summary(self, step, values):
        self._write(step=int(step), summary={"value": values})

    def _write(self, **fields):
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


@cache
def loggers() -> Mapping[str, type[Logger]]:
    """Return every logger by name."""
    return {logger.name: logger for logger in (EventFile, JsonLines, *load_plugins(GROUP))}


def check_loggers(config: Any) -> None:
    """Check the loggers of a `TrainingConfig`.

    Raises:
        InputError: a logger is unknown, or has a setting that it cannot use.
    """
    for name in config.loggers:
        if name not in loggers():
            raise InputError(f"--loggers names {name!r}; expected any of {', '.join(loggers())}")
    for logger in loggers().values():
        logger.check(config)


def open_loggers(config: Any, folder: str | Path) -> list[Logger]:
    """Open the loggers of a `TrainingConfig`.

    Raises:
        InputError: a logger cannot be opened; the loggers opened before it are closed.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    opened: list[Logger] = []
    with contextlib.ExitStack() as stack:
        for name, logger in loggers().items():
            if logger.is_chosen(config):
                try:
                    opened.append(stack.enter_context(contextlib.closing(logger(config, Path(folder)))))
                except ImportError as error:
                    raise InputError(
                        f"--loggers={name}: {error.name or error} is not installed: pip install -e '.[{name}]'"
                    ) from error
        stack.pop_all()  # all are open: keep them open
    return opened
