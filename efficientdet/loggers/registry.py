"""The loggers by name. A new one is a module beside this one and an entry here, or an entry point of a package."""

import contextlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from efficientdet.loggers.json_lines import JsonLines
from efficientdet.loggers.mlflow import Mlflow
from efficientdet.loggers.mlperf import MlperfLog
from efficientdet.loggers.tensorboard import EventFile
from efficientdet.loggers.wandb import WeightsAndBiases
from efficientdet.run_log.logger import Logger
from program_support.errors import InputError

LOGGERS: tuple[type[Logger], ...] = (EventFile, JsonLines, WeightsAndBiases, Mlflow, MlperfLog)
ENTRY_POINTS = "efficientdet.loggers"


@cache
def loggers() -> Mapping[str, type[Logger]]:
    """Return every logger by name."""
    classes = (*LOGGERS, *(entry.load() for entry in sorted(entry_points(group=ENTRY_POINTS))))
    return {logger.name: logger for logger in classes}


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
