"""A training under JAX compiles its step, its evaluation and its calibration, each once; run by test_jax_programs.

    python compilations.py folder

An accelerator takes tens of milliseconds for the smallest program, and a network has hundreds of weights.
"""

import logging
import re
import sys
from collections import Counter
from pathlib import Path

import jax
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training import loop
from efficientdet.training import state as training_state

compiled = Counter[str]()


class Count(logging.Handler):
    def emit(self, record):
        if found := re.match(r"Finished XLA compilation of jit\((\w+)\)", record.getMessage()):
            compiled[found[1]] += 1


def train(folder):
    """Train for two epochs; count from the first step, so that the miniature's initializers are left out."""
    drawn = draw_records(folder / "drawn", images={"train": 8, "val": 6})
    run_start = loop.Run.start

    def start(run):
        compiled.clear()
        run_start(run)

    loop.Run.start = start
    loop.train(
        TrainingConfig(
            model_dir=f"{folder}/model",
            num_devices=1,
            batch_size=4,
            hparams=hyperparameters_of("efficientdet-d0", {**HPARAMS, "num_epochs": 2}),
            records=drawn.records("train"),
            val_records=drawn.records("val"),
            val_json_file=None,
            class_names=drawn.class_names,
            training_mode="traineval",
            checkpoint_period=1,
            eval_batch_size=4,
            calibration_images=8,
            precision="float32",
        )
    )


if __name__ == "__main__":
    training_state.build_detector = build_miniature
    jax.config.update("jax_log_compiles", True)
    logging.getLogger("jax._src.dispatch").addHandler(Count())
    train(Path(sys.argv[1]))
    assert (compiled.pop("_step"), compiled.pop("run")) == (1, 2), compiled  # averaged, raw and final weights in one
    assert compiled.total() < 8, compiled
