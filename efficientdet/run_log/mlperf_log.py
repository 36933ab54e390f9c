"""MLPerf log of a training: `:::MLLOG` lines written with the mlperf-logging package (extra `mlperf`)."""

import logging
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from program_support.errors import InputError

_TRACKED_STATS = "tracked_stats"  # MLPerf logs have it, the package's constants do not


DIVISIONS = ("open", "closed")
STATUSES = ("research", "onprem", "cloud", "preview")
_RULESET = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Facts of a submission: benchmark, organization, platform and status, for the head of the log."""

    benchmark: str  # the identifier of the benchmark
    platform: str  # the machine
    organization: str = "unknown"
    division: str = "open"
    status: str = "research"
    cache_cleared: bool = False  # whether the user cleared the machine's caches before the run


def check_submission(
    *, division: str, status: str, ruleset: str | None, organization: str, platform: str | None
) -> None:
    """Raise InputError for a value that MLPerf's rules do not allow."""
    for flag, value, allowed in (("division", division, DIVISIONS), ("status", status, STATUSES)):
        if value not in allowed:
            raise InputError(f"--mlperf_{flag}={value}: expected one of {', '.join(allowed)}")
    if ruleset is not None and not _RULESET.fullmatch(ruleset):
        raise InputError(f"--mlperf_ruleset={ruleset}: expected a version such as 2.1.0")
    for flag, name in (("organization", organization), ("platform", platform)):
        if name is not None and not name.strip():
            raise InputError(f"--mlperf_{flag} is empty; expected a name")


def version_of(ruleset: str) -> tuple[int, ...]:
    """Return the version numbers of a ruleset: "2.1.0" -> (2, 1, 0)."""
    return tuple(map(int, ruleset.split(".")))


class MlperfLog:
    """Listener of a run log, with a method for each event in the order of a training.

    The clock of a result runs from `start_clock` to `run_finished`.
    """

    def __init__(self, path: str, submission: Submission):
        """Open one or several files, separated by commas; `-` is standard output.

        Raises:
            InputError: the package is missing or a file cannot be written.
        """
        try:
            from mlperf_logging.mllog import constants
            from mlperf_logging.mllog.mllog import MLLogger
        except ImportError as error:
            raise InputError("--mlperf_log needs the package mlperf-logging: pip install -e '.[mlperf]'") from error
        self._keys, self._submission = constants, submission
        self._handlers = [_open_to_append(one) for one in mlperf_files(path)]
        self._log = MLLogger(logger=_logger(self._handlers))

    def event(self, name: str, facts: Mapping[str, Any]) -> None:
        """Log an event by the method of its name."""
        getattr(self, name)(**facts)

    def initialization_started(self) -> None:
        """Log the start of the process, before any record is read."""
        keys, submission = self._keys, self._submission
        for key, value in (
            (keys.SUBMISSION_BENCHMARK, submission.benchmark),
            (keys.SUBMISSION_ORG, submission.organization),
            (keys.SUBMISSION_DIVISION, submission.division),
            (keys.SUBMISSION_STATUS, submission.status),
            (keys.SUBMISSION_PLATFORM, submission.platform),
            (keys.CACHE_CLEAR, submission.cache_cleared),
        ):
            self._log.event(key=key, value=value)
        self._log.start(key=keys.INIT_START)

    def weights_initialized(self, tensors: Iterable[str]) -> None:
        """Log each initial tensor by its name in the rules."""
        for tensor in tensors:
            self._log.event(key=self._keys.WEIGHTS_INITIALIZATION, metadata={"tensor": tensor})

    def hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Log hyperparameters by MLPerf's names such as global_batch_size; samples are images."""
        for key, value in values.items():
            self._log.event(key=key, value=value)

    def start_clock(self) -> None:
        """Start the clock; compilation after this counts."""
        self._log.end(key=self._keys.INIT_STOP)
        self._log.start(key=self._keys.RUN_START)

    def epoch_started(self, epoch: int) -> None:
        """Log the start of epoch 1, 2, .."""
        self._log.start(key=self._keys.EPOCH_START, metadata={"epoch_num": epoch})

    def epoch_finished(self, epoch: int, images_per_second: float) -> None:
        """Log the end of an epoch and the throughput of all devices without evaluation and checkpoints."""
        self._log.end(key=self._keys.EPOCH_STOP, metadata={"epoch_num": epoch})
        self._log.event(key=_TRACKED_STATS, value={"throughput": images_per_second}, metadata={"epoch_num": epoch})

    def evaluation_started(self, epoch: int) -> None:
        """Log the start of the evaluation after an epoch."""
        self._log.start(key=self._keys.EVAL_START, metadata={"epoch_num": epoch})

    def evaluation_finished(self, epoch: int, average_precision: float) -> None:
        """Log the AP (0 .. 1) of the evaluation after an epoch."""
        self._log.event(key=self._keys.EVAL_ACCURACY, value=average_precision, metadata={"epoch_num": epoch})
        self._log.end(key=self._keys.EVAL_STOP, metadata={"epoch_num": epoch})

    def run_finished(self, *, success: bool) -> None:
        """Log the end of the run and whether the target was reached; the last line."""
        self._log.end(key=self._keys.RUN_STOP, metadata={"status": "success" if success else "aborted"})
        self.close()

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for handler in self._handlers:
            handler.close()


def mlperf_files(path: str) -> list[str]:
    """Return the names in a value of --mlperf_log."""
    return [one for one in path.split(",") if one]


def _open_to_append(path: str) -> logging.Handler:
    if path == "-":
        return logging.StreamHandler(sys.stdout)
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--mlperf_log={path}: cannot be written ({error.strerror})") from error


def _logger(handlers: Iterable[logging.Handler]) -> logging.Logger:
    """Return a logger with only these handlers; the package's own one always writes to the console.

    It is not registered by name: a second training in the process would otherwise also write to the first one's file.
    """
    logger = logging.Logger("mlperf", level=logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    return logger
