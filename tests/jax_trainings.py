"""Trainings of miniature_training one after another in one process, which joins its peers once.

    python tests/jax_trainings.py '[SETTINGS, ...]'

Settings as for miniature_training; "evaluate": [checkpoint, file] instead writes the 12 COCO numbers of a checkpoint.
"""

import functools
import json
import sys

import miniature_training
from miniature import build_miniature

from dataset.class_names import ClassNames
from efficientdet.checkpoints import restore
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.evaluation import evaluate
from efficientdet.training import loop, run


def evaluated(checkpoint, file, settings):
    """Write the numbers of a checkpoint."""
    restore.build_detector = build_miniature
    evaluate.evaluate_checkpoint(
        evaluate.EvaluationConfig(
            model=ModelConfig(
                ckpt_path=checkpoint,
                class_names=ClassNames(*zip(*settings["categories"], strict=True)),
                precision="float32",
            ),
            records=tuple(settings["val_records"]),
            json_file=None,
            batch_size=4,
            output_json=file,
        )
    )


def main():
    """The command line."""
    loop.join_world = evaluate.join_world = functools.cache(loop.join_world)
    training_dataset = run.training_dataset
    for settings in json.loads(sys.argv[1]):
        run.training_dataset = training_dataset  # without an earlier accident
        if evaluation := settings.pop("evaluate", None):
            evaluated(*evaluation, settings)
            continue
        try:
            miniature_training.main([json.dumps(settings)])
        except SystemExit as stopped:
            print(f"ended with {stopped.code}", flush=True)


if __name__ == "__main__":
    main()
