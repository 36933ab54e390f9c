"""A training under JAX: unbroken on one device, and stopped on eight devices and resumed on four; run by test_mesh.

    python mesh_training.py folder

The last training is repeated: it changes no bit.
"""

import itertools
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
from efficientdet.training import state as training_state
from efficientdet.training.loop import train

STOPPED = 6  # call of the step


def stopped_step():
    """Send SIGTERM at a call of the step."""
    call, numbers = JaxStep.__call__, itertools.count(1)

    def step(self, *arguments):
        if next(numbers) == STOPPED:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, *arguments)

    return mock.patch.object(JaxStep, "__call__", step)


def main(folder: Path) -> None:
    """Train in folder/one and folder/several."""
    training_state.build_detector = build_miniature
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
        "precision": "float32",
    }
    train(TrainingConfig(model_dir=f"{folder}/one", num_devices=1, batch_size=8, **settings))
    arrays: list[dict[str, np.ndarray]] = []
    several = {"model_dir": f"{folder}/several", **settings}
    with stopped_step():
        assert train(TrainingConfig(batch_size=1, **several)).exit_code == 143
    assert read_description(f"{folder}/several/ckpt").global_step in (STOPPED, STOPPED + 1)  # a thread gets the signal
    for _ in range(2):  # the second time as after a kill behind the last checkpoint: no step is left
        train(TrainingConfig(num_devices=4, batch_size=2, **several))
        arrays.append(read_arrays(f"{folder}/several/ckpt-final"))
    assert arrays[0].keys() == arrays[1].keys()
    assert [name for name in arrays[0] if not np.array_equal(arrays[0][name], arrays[1][name])] == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
