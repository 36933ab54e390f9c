"""A training of the miniature network as a program of its own, for tests that start several of it, or kill it.

    python tests/miniature_training.py '{"model_dir": ..., "records": [...], "categories": [[1, "ball"], ...], ...}'

Other keys are those of TrainingConfig; "hparams" overrides, "accident": [rank, step, KIND] with "raise", "kill", "stop"
or "hang", and "without_folder": a rank whose model_dir is another one, as on a machine that does not share it;
"differs": [rank, key, value], a setting of that rank alone; "slow_writing": seconds that the first checkpoint takes
longer. The records are not checked, nothing is exported, and nothing calibrated without "calibration_images".
At its end each rank writes `digest-RANK.txt` into model_dir: of every number that it holds.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from miniature import HPARAMS, build_miniature

from dataset.class_names import ClassNames
from efficientdet.checkpoints import restore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.exports import saved_model
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training import loop, run
from efficientdet.training import state as training_state
from program_support.errors import InputError


def own_rank():
    return os.environ.get("HOROVOD_RANK") or os.environ.get("JAX_PROCESS_ID", "0")


def with_accident(training_dataset, rank, step, kind):
    """A source of batches that fails at one of them, on one rank."""

    def batches_until_the_accident(*arguments, **options):
        for number, batch in enumerate(training_dataset(*arguments, **options)):
            if own_rank() == str(rank) and number == step:
                if kind == "raise":
                    raise RuntimeError("an accident for the test")
                if kind != "hang":
                    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGTERM}[kind])
                while kind == "hang":
                    time.sleep(600)
            yield batch

    return batches_until_the_accident


def slow(save, seconds):
    pauses = [seconds]

    def save_slowly(*arguments):
        if pauses:
            time.sleep(pauses.pop())
        return save(*arguments)

    return save_slowly


def keeping(prepare, runs):
    def prepared(*arguments, **options):
        runs.append(prepare(*arguments, **options))
        return runs[-1]

    return prepared


def write_digest(training):
    arrays = training.state.rank_arrays()
    digest = hashlib.sha256(b"".join(np.asarray(arrays[name]).tobytes() for name in sorted(arrays))).hexdigest()
    Path(training.config.model_dir, f"digest-{training.world.rank}.txt").write_text(digest)


def main(arguments):
    settings = json.loads(arguments[0])
    if accident := settings.pop("accident", None):
        run.training_dataset = with_accident(run.training_dataset, *accident)
    run.CheckpointStore.save = slow(run.CheckpointStore.save, settings.pop("slow_writing", 0))
    runs = []
    loop.Run = keeping(loop.Run, runs)
    saved_model.export_saved_model = lambda *_, **__: None
    training_state.with_suggestions = lambda config, *, log: config  # a second of each start
    training_state.build_detector = restore.build_detector = build_miniature
    if own_rank() == str(settings.pop("without_folder", None)):
        settings["model_dir"] += "/elsewhere"
    rank, *setting = settings.pop("differs", (None, None, None))
    if own_rank() == str(rank):
        settings |= [setting]
    hparams = hyperparameters_of("efficientdet-d0", {**HPARAMS, **settings.pop("hparams", {})})
    category_ids, names = zip(*settings.pop("categories"), strict=True)
    defaults = {
        "val_records": (),
        "val_json_file": None,
        "batch_size": 4,
        "eval_batch_size": 4,
        "checkpoint_period": 1,
        "calibration_images": 0,
        "precision": "float32",
        "use_xla": False,
        "training_mode": "train300",
    }
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}
    try:
        outcome = loop.train(
            TrainingConfig(hparams=hparams, class_names=ClassNames(category_ids, names), **{**defaults, **settings})
        )
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if outcome.exit_code:
        sys.exit(outcome.exit_code)
    write_digest(runs[0])


if __name__ == "__main__":
    main(sys.argv[1:])
