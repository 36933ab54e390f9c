"""A training under JAX: unbroken on one device, and stopped on eight devices and resumed on four; run by test_mesh.

    python mesh_training.py folder

In both of them the weights become NaN at the third step, and the training is rolled back. Optimizer state and averages
are sharded on several devices, and whole on one. The last training is repeated: it changes no bit.
"""

import itertools
import math
import os
import signal
import sys
from pathlib import Path
from unittest import mock

import numpy as np
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature

from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.registry import hyperparameters_of
from efficientdet.optimization.jax_step import JaxStep
from efficientdet.training import start as training_start
from efficientdet.training.loop import train

POISONED, STOPPED = 3, 6  # calls of the step


def with_accidents(*, stops: bool):
    """Make the weights NaN at one call of the step and, if it `stops`, send SIGTERM at another."""
    call, numbers = JaxStep.__call__, itertools.count(1)

    def step(self, batch, learning_rate, stop_requested=False):
        number = next(numbers)
        if stops and number == STOPPED:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, batch, math.nan if number == POISONED else learning_rate, stop_requested)

    return mock.patch.object(JaxStep, "__call__", step)


def main(folder: Path) -> None:
    """Train in folder/one and folder/several."""
    training_start.build_detector = build_miniature
    drawn = draw_records(folder / "drawn", images={"train": 32})
    settings = {
        "hparams": hyperparameters_of("efficientdet-d0", {**HPARAMS, "num_epochs": 2}),
        "records": drawn.records("train"),
        "val_records": (),
        "val_json_file": None,
        "class_names": drawn.class_names,
        "training_mode": "train300",
        "eval_batch_size": 8,
        "calibration_images": 16,
        "checkpoint_steps": 2,
        "on_nan": "rollback",
        "precision": "float32",
    }
    with with_accidents(stops=False):
        train(TrainingConfig(model_dir=f"{folder}/one", num_devices=1, batch_size=8, **settings))
    arrays: list[dict[str, np.ndarray]] = []
    several = {"model_dir": f"{folder}/several", "shard_optimizer_state": True, **settings}
    with with_accidents(stops=True):
        assert train(TrainingConfig(batch_size=1, **several)).exit_code == 143
    assert read_description(f"{folder}/several/ckpt").global_step == 6
    for _ in range(2):  # the second time as after a kill behind the last checkpoint: no step is left
        train(TrainingConfig(num_devices=4, batch_size=2, **several))
        arrays.append(read_arrays(f"{folder}/several/ckpt-final"))
    assert arrays[0].keys() == arrays[1].keys()
    assert [name for name in arrays[0] if not np.array_equal(arrays[0][name], arrays[1][name])] == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
