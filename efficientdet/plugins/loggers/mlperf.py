"""MLPerf log of a training: `:::MLLOG` lines written with the mlperf-logging package (extra `mlperf`)."""

import logging
import sys
from collections.abc import Iterable

from efficientdet.configuration.flag_paths import writable_file
from efficientdet.run_log.loggers import Logger
from program_support.errors import InputError

SUBMISSION = (
    *(f"submission_{name}" for name in ("benchmark", "org", "division", "status", "platform")),
    "cache_clear",
)


class MlperfLog(Logger):
    """Writer of --mlperf_log: one or several files, separated by commas; `-` is standard output."""

    name = "mlperf"

    @classmethod
    def is_chosen(cls, config):
        return bool(config.mlperf_log)

    @classmethod
    def check(cls, config):
        if cls.name in config.loggers:
            raise InputError("--loggers names mlperf; expected --mlperf_log=FILE")
        for path in _files(config):
            if path != "-":
                writable_file(path, "mlperf_log")
        submission(config.mlperf_submission)

    def __init__(self, config, folder):
        try:
            from mlperf_logging.mllog import constants
            from mlperf_logging.mllog.mllog import MLLogger
        except ImportError as error:
            raise InputError("--mlperf_log needs the package mlperf-logging: pip install -e '.[mlperf]'") from error
        self._keys, self._config = constants, config
        # The package's own logger always writes to the console. One that was registered by name would also write to
        # the file of an earlier training of this process.
        logger = logging.Logger("mlperf", level=logging.INFO)
        for path in _files(config):
            logger.addHandler(_open_to_append(path))
        self._handlers, self._log = logger.handlers, MLLogger(logger=logger)

    def event(self, name, facts):
        getattr(self, f"_{name}")(**facts)

    def close(self):
        for handler in self._handlers:
            handler.close()

    def _initialization_started(self, processes):
        from efficientdet.devices.device import device_name

        keys, config = self._keys, self._config
        self._values(
            {
                keys.SUBMISSION_BENCHMARK: config.hparams.family.mlperf.get("benchmark", config.hparams.family.name),
                keys.SUBMISSION_ORG: "unknown",
                keys.SUBMISSION_DIVISION: "open",
                keys.SUBMISSION_STATUS: "research",
                keys.SUBMISSION_PLATFORM: f"{processes} x {device_name()}",
                keys.CACHE_CLEAR: False,
                **submission(config.mlperf_submission),
            }
        )
        self._log.start(key=keys.INIT_START)

    def _run_started(
        self, schedule, global_batch_size, images, evaluated_images, images_of_batch_statistics, weight_names
    ):
        """Log the hyperparameters and the initial weights, then start the clock: compilation after this counts."""
        config, family, keys = self._config, self._config.hparams.family, self._keys
        known = {**config.hparams.to_dict(), "images_of_batch_statistics": images_of_batch_statistics}
        self._values(
            {
                "seed": config.seed,
                "global_batch_size": global_batch_size,
                "gradient_accumulation_steps": config.accumulate_steps,
                "train_samples": images,
                "eval_samples": evaluated_images,
                "opt_name": config.hparams.optimizer,
                "opt_base_learning_rate": schedule.peak_learning_rate,
                "opt_weight_decay": config.hparams.weight_decay,
                "opt_learning_rate_warmup_epochs": config.hparams.lr_warmup_epoch,
                "opt_learning_rate_warmup_factor": schedule.warmup_init / schedule.peak_learning_rate,
                "opt_learning_rate_warmup_steps": schedule.warmup_steps,
                **{
                    name: known[source] if isinstance(source, str) else [known[each] for each in source]
                    for name, source in family.mlperf.get("values", {}).items()
                },
            }
        )
        for tensor in torch_parameters(weight_names) if family.mlperf.get("logs_weights") else ():
            self._log.event(key=keys.WEIGHTS_INITIALIZATION, metadata={"tensor": tensor})
        self._log.end(key=keys.INIT_STOP)
        self._log.start(key=keys.RUN_START)

    def _epoch_started(self, epoch):
        self._log.start(key=self._keys.EPOCH_START, metadata={"epoch_num": epoch})

    def _epoch_finished(self, epoch, images_per_second):
        self._log.end(key=self._keys.EPOCH_STOP, metadata={"epoch_num": epoch})
        # In MLPerf logs, but not among the package's constants
        self._log.event(key="tracked_stats", value={"throughput": images_per_second}, metadata={"epoch_num": epoch})

    def _evaluation_started(self, epoch):
        self._log.start(key=self._keys.EVAL_START, metadata={"epoch_num": epoch})

    def _evaluation_finished(self, epoch, average_precision):
        self._log.event(key=self._keys.EVAL_ACCURACY, value=average_precision, metadata={"epoch_num": epoch})
        self._log.end(key=self._keys.EVAL_STOP, metadata={"epoch_num": epoch})

    def _run_finished(self, success):
        self._log.end(key=self._keys.RUN_STOP, metadata={"status": "success" if success else "aborted"})
        self.close()

    def _values(self, values):
        for key, value in values.items():
            self._log.event(key=key, value=value)


def submission(items: Iterable[str]) -> dict[str, str | bool]:
    """Return the entries of --mlperf_submission by key.

    Raises:
        InputError: one is not KEY=VALUE, or MLPerf's logs have no such key.
    """
    entries = {}
    for item in items:
        key, _, value = item.partition("=")
        if not value or key not in SUBMISSION:
            raise InputError(f"--mlperf_submission={item}: expected KEY=VALUE, KEY one of {', '.join(SUBMISSION)}")
        entries[key] = {"True": True, "False": False}.get(value, value)
    return entries


def torch_parameters(names: Iterable[str]) -> list[str]:
    """Return the names of the convolutions' weights and biases in torch's DistributedDataParallel.

    Frozen batch norms have no parameters in MLPerf's reference and are left out.
    """
    names = set(names)
    convolutions = {name.removesuffix("/kernel") for name in names if name.endswith("/kernel")}
    parameters = [f"{layer}/weight" for layer in convolutions]
    parameters += [f"{layer}/bias" for layer in convolutions if f"{layer}/bias" in names]
    return sorted("module." + name.replace("/", ".") for name in parameters)


def _files(config) -> list[str]:
    return [path for path in (config.mlperf_log or "").split(",") if path]


def _open_to_append(path: str) -> logging.Handler:
    if path == "-":
        return logging.StreamHandler(sys.stdout)
    try:
        return logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--mlperf_log={path}: cannot be written ({error.strerror})") from error
