"""MLPerf's log of a training: `:::MLLOG` lines, by the mlperf-logging package (extra `mlperf`)."""

import logging
from collections.abc import Mapping
from typing import Any

from object_detection.errors import InputError

_TRACKED_STATS = "tracked_stats"  # of MLPerf's logs, but not among the package's constants


class NoMlperfLog:
    """Takes every call and writes nothing: without --mlperf_log, and on every rank but the first."""

    def __getattr__(self, name: str):
        return lambda *_, **__: None


class MlperfLog:
    """Events in the order in which a training meets them. The clock of a result runs from `run_starts` to `run_stops`."""

    def __init__(self, path: str):
        """Raises InputError where the package is missing."""
        try:
            from mlperf_logging.mllog import constants
            from mlperf_logging.mllog.mllog import MLLogger
        except ImportError as error:
            raise InputError("--mlperf_log needs the package mlperf-logging: pip install -e '.[mlperf]'") from error
        self._keys = constants
        self._file = _open_to_append(path)
        self._log = MLLogger(logger=_file_logger(self._file))

    def starts(self, *, platform: str, benchmark: str) -> None:
        """The process begins; no record has been touched. `benchmark`: the name that results are compared under."""
        keys = self._keys
        for key, value in ((keys.SUBMISSION_BENCHMARK, benchmark), (keys.SUBMISSION_ORG, "unknown"),
                           (keys.SUBMISSION_DIVISION, "open"), (keys.SUBMISSION_STATUS, "research"),
                           (keys.SUBMISSION_PLATFORM, platform)):
            self._log.event(key=key, value=value)
        self._log.event(key=keys.CACHE_CLEAR, value=True)
        self._log.start(key=keys.INIT_START)

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Log what the run is made with, by MLPerf's names such as global_batch_size; samples are images."""
        for key, value in values.items():
            self._log.event(key=key, value=value)

    def run_starts(self) -> None:
        """The clock starts: what is compiled from now on counts."""
        self._log.end(key=self._keys.INIT_STOP)
        self._log.start(key=self._keys.RUN_START)

    def epoch_starts(self, epoch: int) -> None:
        """Epoch 1, 2, .. begins."""
        self._log.start(key=self._keys.EPOCH_START, metadata={"epoch_num": epoch})

    def epoch_stops(self, epoch: int) -> None:
        """The last step of an epoch is done."""
        self._log.end(key=self._keys.EPOCH_STOP, metadata={"epoch_num": epoch})

    def throughput(self, images_per_second: float, *, epoch: int) -> None:
        """Log the speed of all devices together, evaluation and checkpoints not counted."""
        self._log.event(key=_TRACKED_STATS, value={"throughput": images_per_second}, metadata={"epoch_num": epoch})

    def evaluation_starts(self, epoch: int) -> None:
        """The evaluation after an epoch begins."""
        self._log.start(key=self._keys.EVAL_START, metadata={"epoch_num": epoch})

    def evaluation_stops(self, epoch: int, *, accuracy: float) -> None:
        """The evaluation after an epoch found an AP of `accuracy`, 0 .. 1."""
        self._log.event(key=self._keys.EVAL_ACCURACY, value=accuracy, metadata={"epoch_num": epoch})
        self._log.end(key=self._keys.EVAL_STOP, metadata={"epoch_num": epoch})

    def run_stops(self, *, success: bool) -> None:
        """The target is reached, or the training is over without; the last line."""
        self._log.end(key=self._keys.RUN_STOP, metadata={"status": "success" if success else "aborted"})
        self._file.close()


def _open_to_append(path: str) -> logging.FileHandler:
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--mlperf_log={path}: cannot be written ({error.strerror})") from error


def _file_logger(file: logging.FileHandler) -> logging.Logger:
    """Writes into the file alone; the package's own writes to the console, among a user's lines.

    Of no name in the process's register: a second training there would find the first one's file, and write twice.
    """
    logger = logging.Logger("mlperf", level=logging.INFO)
    logger.addHandler(file)
    return logger
