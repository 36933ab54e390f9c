"""Processes compare their settings before they train or evaluate together."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from dataset.class_names import ClassNames
from dataset.records.record_index import RecordIndex
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices import agreement
from efficientdet.devices.agreement import require_agreement
from efficientdet.evaluation.evaluate import RANK_FIELDS, EvaluationConfig
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training.run import OWN_SETTINGS
from program_support.errors import InputError

ENDING = ": expected the same command, records and code in each"


def agree(*processes, own=()):
    """Each process's (config, index) against all others'."""
    gathered = []
    for _ in range(2):  # first to learn what each sends, then to compare
        sent, everyone = [], gathered
        for config, index in processes:

            def gather(value, everyone=everyone, sent=sent):
                sent.append(value)
                return everyone or [value]

            require_agreement(config, SimpleNamespace(size=len(processes), gather=gather), rank_fields=own, index=index)
        gathered = sent


def training(hparams=(), **settings):
    given = {
        "records": ("a/train-0",),
        "val_records": (),
        "val_json_file": None,
        "class_names": ClassNames((1, 2), ("ball", "star")),
        "model_dir": "runs/a",
        "hparams": hyperparameters_of("efficientdet-d0", dict(hparams)),
        "hparams_given": frozenset(("image_size", "num_epochs", "learning_rate")),
    }
    return TrainingConfig(**{**given, **settings})


def indexed(*lengths, path="a/train-0"):
    lengths = np.int64(lengths)
    return RecordIndex(
        paths=(path,),
        file_numbers=np.zeros(len(lengths), np.int32),
        offsets=np.cumsum(lengths) - lengths + 12,
        lengths=lengths,
    )


def test_a_list_of_a_checkpoint_is_the_tuple_of_a_default():
    ratios = training().hparams.aspect_ratios
    stored = training({"aspect_ratios": [list(each) for each in ratios]})
    agree((training(), None), (stored, None))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (training({"learning_rate": 0.5}), "differ in hparam learning_rate:"),
        (training(class_names=ClassNames((1, 2), ("star", "ball"))), "differ in --class_names:"),
        (training(seed=1, batch_size=8, records=("b/train-0",)), "differ in --batch_size, --seed:"),
    ],
)
def test_different_settings_are_named(other, message):
    with pytest.raises(InputError, match=message) as refused:
        agree((training(), None), (other, None), own=OWN_SETTINGS)
    assert str(refused.value).endswith(ENDING)


@pytest.mark.parametrize("index", [indexed(5, 6), indexed(5, 6, 8), indexed(5, 6, 7, path="a/train-1")])
def test_different_records_are_named(index):
    with pytest.raises(InputError, match="differ in records:"):
        agree(*[(training(), each) for each in (indexed(5, 6, 7), indexed(5, 6, 7), index)], own=OWN_SETTINGS)


def test_paths_on_a_machine_may_differ():
    one, other = training(), training(records=("b/train-0",), model_dir="/elsewhere")
    agree((one, indexed(5, path="a/train-0")), (other, indexed(5, path="b/train-0")), own=OWN_SETTINGS)


def test_another_version_of_the_code_is_named(monkeypatch):
    versions = iter([{"jax": "1"}, {"jax": "2"}] * 2)
    monkeypatch.setattr(agreement, "versions", lambda: next(versions))
    with pytest.raises(InputError, match="the version of jax"):
        agree((training(), None), (training(), None))


def evaluation(nms):
    return EvaluationConfig(model=ModelConfig(ckpt_path="a", overrides={"nms": nms}), records=("a",))


def test_evaluations_compare_the_settings_of_their_model():
    one, other = evaluation(1), evaluation(2)
    with pytest.raises(InputError, match="--overrides"):
        agree((one, None), (other, None), own=RANK_FIELDS)


def test_a_single_process_compares_nothing():
    require_agreement(training(), SimpleNamespace(size=1))


def test_no_value_depends_on_the_hash_seed_of_its_process():
    """A mapping with sets in every field, whatever its type, in two interpreters."""
    code = """
import dataclasses
from types import SimpleNamespace
from test_agreement import evaluation, require_agreement, training
words = {"image_size", "num_epochs", "learning_rate", "jitter_min", "aspect_ratios"}
train, evaluate = training(), evaluation(1)
world = SimpleNamespace(size=2, gather=lambda sent: [[sent], print(sent)][0])
for part in (train, train.hparams, evaluate, evaluate.model):
    for field in dataclasses.fields(part):
        if field.name not in ("hparams", "model"):
            object.__setattr__(part, field.name, {word: frozenset(words) for word in words})
require_agreement(train, world)
require_agreement(evaluate, world, rank_fields=["hparams"])
"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0].count(b"jitter_min") > 200
    assert outputs[0] == outputs[1]
