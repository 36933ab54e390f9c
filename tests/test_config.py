import json

import pytest

from dataset.class_names import ClassNames
from efficientdet.checkpoints.checkpoint import existing_backbone, existing_checkpoint
from efficientdet.configuration.flag_paths import (
    class_names_for,
    writable_file,
    writable_folder,
)
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.families.efficientdet.hyperparameters import EfficientDetHyperparameters
from efficientdet.families.hyperparameters import with_overrides
from program_support.errors import InputError

NAMES = ClassNames((1, 7), ("cat", "dog"))


def config(hparams=None, **changes):
    defaults = {
        "hparams": with_overrides(EfficientDetHyperparameters(), hparams or {}),
        "records": ("train-00000-of-00001.tfrecord",),
        "val_records": ("val-00000-of-00001.tfrecord",),
        "val_json_file": None,
        "class_names": NAMES,
        "model_dir": "out",
    }
    return TrainingConfig(**{**defaults, **changes})


@pytest.mark.parametrize(
    ("mode", "epochs", "stop", "last"),
    [
        ("traineval", 300, 0, 300),
        ("train", 400, 0, 301),
        ("train", 300, 0, 226),
        ("train", 350, 0, 263),
        ("train", 1, 0, 1),
        ("train300", 300, 0, 300),
        ("traineval", 400, 300, 300),
        ("traineval", 3, 300, 3),
        ("train", 400, 300, 300),
    ],
)
def test_last_epoch(mode, epochs, stop, last):
    # efficientdet.md 2.1: 226 of 300, 263 of 350; 400 stop at 300 there by a second rule, here by --stop_epoch.
    assert config({"num_epochs": epochs}, training_mode=mode, stop_epoch=stop).last_epoch == last


def test_another_optimizer_needs_a_learning_rate_of_its_own():
    with pytest.raises(InputError, match="optimizer=adamw: the default learning rate is one for sgd"):
        config({"optimizer": "adamw"})
    assert config({"optimizer": "adamw", "learning_rate": 1e-4}).hparams.learning_rate == 1e-4
    assert config({"optimizer": "adamw"}, lr_per_64=0.001).lr_per_64 == 0.001


@pytest.mark.parametrize(
    ("mode", "benchmark", "evaluates"),
    [("traineval", False, True), ("train", False, True), ("train300", False, False), ("traineval", True, False)],
)
def test_what_is_evaluated(mode, benchmark, evaluates):
    assert config(training_mode=mode, benchmark=benchmark).evaluates is evaluates


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_epochs": (40,), "eval_period": 1}, "--eval_epochs cannot be combined with --eval_period"),
        ({"eval_epochs": (40,), "eval_from": 1}, "--eval_epochs cannot be combined with --eval_period"),
        ({"seed": 2**32}, "--seed=4294967296: expected at most 2147483647"),
        ({"val_records": (), "patience": 3}, "--patience needs --val_file_pattern"),
        ({"val_records": (), "training_mode": "train300", "validate": True}, "--validate needs"),
        ({"hparams": {"var_freeze_expr": "("}}, r"invalid regular expression"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(InputError, match=message):
        config(**changes)


def test_evaluations_after_listed_epochs():
    listed = config(eval_epochs=(40, 50, 55), checkpoint_period=10)
    assert [epoch for epoch in range(1, 80) if listed.evaluates_after(epoch)] == [40, 50, 55]
    assert not config(eval_epochs=(40,), val_records=()).evaluates_after(40)


def test_folders_of_outputs_are_created_and_left_empty(tmp_path):
    assert writable_folder(str(tmp_path / "a" / "b"), "f") == str(tmp_path / "a" / "b")
    assert writable_file(str(tmp_path / "c" / "d"), "f") == str(tmp_path / "c" / "d")
    assert not [*(tmp_path / "a" / "b").iterdir(), *(tmp_path / "c").iterdir()]
    (tmp_path / "file").touch()
    assert writable_file(str(tmp_path / "file"), "f")  # will be replaced
    assert writable_file("", "f") is None


def test_existing_checkpoint_and_backbone(tmp_path):
    for name in ("ckpt.index", "b0.h5"):
        (tmp_path / name).touch()
    assert existing_checkpoint(str(tmp_path), "f") == f"{tmp_path}/ckpt"
    assert existing_checkpoint(None, "f") is None
    with pytest.raises(InputError, match=f"^--f={tmp_path}/b: there is no checkpoint of that name"):
        existing_checkpoint(str(tmp_path / "b"), "f")
    for fine in (None, "imagenet", str(tmp_path / "b0.h5"), str(tmp_path / "ckpt")):
        assert existing_backbone(fine) == fine
    for wrong in ("b1.h5", "b1", "Imagenet"):
        with pytest.raises(InputError, match=f"--backbone_init={tmp_path}/{wrong}: there is no"):
            existing_backbone(str(tmp_path / wrong))


def test_class_names(tmp_path):
    NAMES.write(tmp_path / "train.classes.json")
    categories, same = NAMES.to_categories(), tmp_path / "same.json"
    same.write_text(json.dumps({"categories": categories, "images": [], "annotations": []}))
    for name, json_file in (("train", None), ("train", str(same)), ("bare", str(same))):
        assert class_names_for((f"{tmp_path}/{name}-00000-of-00001.tfrecord",), json_file=json_file) == NAMES
