"""Trainings of miniature_training one after another, then programs, in one process that joins its peers once.

    python tests/several_trainings.py '[SETTINGS, ...]' '[["eval", "--ckpt_path=...", ...], ...]'

Settings as for miniature_training.
"""

import functools
import json
import sys
from unittest import mock

import miniature_programs
import miniature_training
from miniature import build_miniature, reset_once_made

from efficientdet.checkpoints import restore
from efficientdet.plugins.jax_processes import launch
from efficientdet.training import batch_norm_calibration, loop, run, validation
from efficientdet.training import state as training_state


def joining_once(join):
    """A connection to the peers that is made at the first call."""
    worlds = []

    def joined(*arguments, **options):
        if not worlds:
            worlds.append(join(*arguments, **options))
        return worlds[0]

    return joined


def main():
    """The command line."""
    launch.join = joining_once(launch.join)
    training_state.initial_state = reset_once_made(training_state.initial_state)  # compiled once in a process
    for module, name in (
        (loop, "build_train_step"),
        (validation, "keras_predictor"),
        (batch_norm_calibration, "Calibration"),
    ):
        setattr(module, name, functools.cache(getattr(module, name)))
    for settings in json.loads(sys.argv[1]):
        with mock.patch.object(run, "training_dataset", run.training_dataset):
            try:
                miniature_training.main([json.dumps(settings)])
            except SystemExit as stopped:
                print(f"ended with {stopped.code}", flush=True)
    restore.build_detector = build_miniature
    miniature_programs.main(json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
