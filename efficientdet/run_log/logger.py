"""Interface of a logger."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Logger:
    """Writer of a log of a training; a subclass writes what it overrides.

    It is listed in `efficientdet.loggers.registry`; another package provides one by an entry point of the group
    `efficientdet.loggers`. Its module imports what a log needs only when one is opened.
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
