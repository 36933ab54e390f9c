"""MLPerf log lines of a training, written for the events of its run log."""

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.device import device_name
from efficientdet.devices.distributed import World
from efficientdet.run_log.mlperf_log import MlperfLog, Submission
from efficientdet.training.run import Run
from model.detection_model import named_variables


def mlperf_listeners(config: TrainingConfig, world: World) -> list["MlperfListener"]:
    """Return the listener that writes --mlperf_log; an empty list without the flag or on ranks other than the first."""
    return [MlperfListener(config.mlperf_log, config, world)] if config.mlperf_log and world.is_first else []


class MlperfListener(MlperfLog):
    """Writes MLPerf's lines for the events of a training."""

    def __init__(self, path: str, config: TrainingConfig, world: World):
        super().__init__(
            path,
            Submission(
                benchmark=config.hparams.family.mlperf_benchmark(config.mlperf_ruleset),
                platform=config.mlperf_platform or f"{world.size} x {device_name()}",
                organization=config.mlperf_organization,
                division=config.mlperf_division,
                status=config.mlperf_status,
                cache_cleared=config.mlperf_cache_cleared,
            ),
        )

    def run_started(self, run: Run, evaluated_images: int) -> None:
        """Log the hyperparameters and the initial weights, then start the clock of the result."""
        config, schedule = run.config, run.schedule
        assert config.batch_size is not None  # set by `with_batch_sizes`
        family = config.hparams.family
        self.hyperparameters(
            {
                "seed": config.seed,
                "global_batch_size": run.global_batch_size,
                "gradient_accumulation_steps": config.accumulate_steps,
                "train_samples": len(run.index),
                "eval_samples": evaluated_images,
                "opt_name": config.hparams.optimizer,
                "opt_base_learning_rate": schedule.peak_learning_rate,
                "opt_weight_decay": config.hparams.weight_decay,
                "opt_learning_rate_warmup_epochs": config.hparams.lr_warmup_epoch,
                "opt_learning_rate_warmup_factor": schedule.warmup_init / schedule.peak_learning_rate,
                "opt_learning_rate_warmup_steps": schedule.warmup_steps,
                **family.mlperf_values(
                    config.hparams, batch_norm_images=config.batch_size * run.world.sharing_statistics
                ),
            }
        )
        self.weights_initialized(family.mlperf_tensors(named_variables(run.state.detector.network)))
        self.start_clock()
