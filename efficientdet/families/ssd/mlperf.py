"""What MLPerf's rules call SSD300 and want of it (mlcommons/training, single_stage_detector; benchmark of 0.5 to 1.1)."""

from typing import Any

from efficientdet.families.ssd.hyperparameters import SsdHyperparameters
from efficientdet.run_log.mlperf_log import version_of
from program_support.errors import InputError

_RETINANETS = (2, 0, 0)  # from here on the id is RetinaNet's


def benchmark(ruleset: str | None) -> str:
    """`ssd`. Raises InputError for rules from 2.0 on: their `ssd` is RetinaNet."""
    if ruleset and version_of(ruleset) >= _RETINANETS:
        raise InputError(f"--mlperf_ruleset={ruleset}: knows no SSD300, its benchmark ssd is RetinaNet; wanted 1.1.0 or before")
    return "ssd"


def values(hparams: SsdHyperparameters, *, batch_norm_images: int) -> dict[str, Any]:
    """What is logged beside what every training logs: over how many images a batch norm takes its statistics, how often a crop
    is tried before another kind is drawn, after which epochs the rate drops."""
    return {"model_bn_span": batch_norm_images, "max_samples": hparams.num_cropping_iterations,
            "opt_learning_rate_decay_boundary_epochs": [hparams.first_lr_drop_epoch, hparams.second_lr_drop_epoch]}
