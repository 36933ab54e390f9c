"""Measurement of a training step on this machine."""

import os
import time
from pathlib import Path
from typing import Any

from efficientdet.data_checks.findings import as_hparams
from efficientdet.families.registry import hyperparameters_of
from efficientdet.quickstart import choices
from efficientdet.quickstart.configuration import QuickstartConfig
from efficientdet.quickstart.programs import run_program
from efficientdet.quickstart.split_records import records_pattern
from efficientdet.run_log.journal import DEFAULT_FILE_NAME, INTERVAL_STEP, read_log
from program_support.atomic_files import unfinished_folder

_TIMED_STEPS = 12


def measure_step_time(
    config: QuickstartConfig, folder: Path, settings: dict[str, Any], *, weights: dict[str, str], side: int, images: int
) -> tuple[choices.StepTime, float]:
    """Time a training step with an input of this longer side; also return the seconds until the first step ended.

    The weights are loaded as in the training, which refuses settings that change what they mean. The batch size is that
    of a training on `images` images with the machine's devices, the measured one that of a CPU.
    """
    start_time = time.time()
    with unfinished_folder(folder / "timing") as timing:
        run_program(
            "train",
            {
                "training_file_pattern": records_pattern(folder, "train"),
                "model_dir": timing,
                "model_name": config.model_name,
                **weights,
                "warn_of_lr": False,
                "benchmark": True,
                "benchmark_steps": _TIMED_STEPS,
                "batch_size": choices.batch_size(images, accelerated=False),
                "log_steps": 1,  # time every step, so that the median excludes the compilation
                "hparams": as_hparams(settings),
            },
        )
        log = list(read_log(timing / DEFAULT_FILE_NAME))
    logged = {key: value for entry in log for key, value in (entry.get("data") or {}).items()}
    first_step = next(float(entry["timestamp"]) for entry in log if entry.get("step") == INTERVAL_STEP)
    if logged["load_average"] > 2 * (os.cpu_count() or 1):
        print(
            f"warning: other processes use this machine (load average {logged['load_average']:.1f} on {os.cpu_count()} "
            "cores); the input size, chosen from the measured step time, may be smaller than necessary"
        )
    accelerated = logged["peak_device_memory_bytes"] is not None
    step_time = choices.StepTime(
        seconds=logged["latency_training_p50"],
        side=side,
        batch_size=choices.batch_size(images, accelerated=accelerated),
        accelerated=accelerated,
        fixed_share=hyperparameters_of(config.model_name, {}).family.quickstart.fixed_share,
    )
    return step_time, first_step - start_time
