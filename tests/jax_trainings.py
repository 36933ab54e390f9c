"""Trainings of miniature_training one after another, then programs, in one process that joins its peers once.

    python tests/jax_trainings.py '[SETTINGS, ...]' '[["eval", "--ckpt_path=...", ...], ...]'

Settings as for miniature_training; "poisoned": a number of steps done after which the learning rate is NaN once.
"""

import contextlib
import json
import math
import sys
from unittest import mock

import miniature_programs
import miniature_training
from miniature import build_miniature

from efficientdet.checkpoints import restore
from efficientdet.devices import launchers
from efficientdet.training import inputs, run


def joining_once(join):
    """A connection to the peers that is made at the first call."""
    worlds = []

    def joined(*arguments, **options):
        if not worlds:
            worlds.append(join(*arguments, **options))
        return worlds[0]

    return joined


@contextlib.contextmanager
def poisoned(step):
    """The learning rate after that number of steps is NaN, once."""
    learning_rate, steps = run.Run.learning_rate, [step]

    def rate(training):
        if training.state.step in steps:
            steps.clear()
            return math.nan
        return learning_rate.fget(training)

    with mock.patch.object(run.Run, "learning_rate", property(rate)):
        yield


def main():
    """The command line."""
    launchers._join_jax = joining_once(launchers._join_jax)
    for settings in json.loads(sys.argv[1]):
        with (
            poisoned(settings.pop("poisoned", None)),
            mock.patch.object(inputs, "training_dataset", inputs.training_dataset),
        ):
            try:
                miniature_training.main([json.dumps(settings)])
            except SystemExit as stopped:
                print(f"ended with {stopped.code}", flush=True)
    restore.build_detector = build_miniature
    miniature_programs.main(json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
