import json

import pytest

from dataset.class_names import ClassNames
from efficientdet.checkpoints.checkpoint_flags import existing_backbone, existing_checkpoint
from efficientdet.configuration.flag_paths import (
    class_names_for,
    existing_file,
    records_of,
    required,
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
        ({"training_mode": "eval"}, "expected one of train, train300, traineval"),
        ({"batch_size": 0}, "--batch_size=0"),
        ({"eval_batch_size": -1}, "--eval_batch_size=-1"),
        ({"checkpoint_period": 0}, "--checkpoint_period=0"),
        ({"benchmark_steps": 0}, "--benchmark_steps=0"),
        ({"log_steps": 0}, "--log_steps=0"),
        ({"stop_epoch": -3}, "--stop_epoch=-3: expected at least 0"),
        ({"target_ap": 2.0}, "--target_ap=2.0: expected 0 to 1"),
        ({"eval_epochs": (40, 0)}, "--eval_epochs=40,0: expected at least 1"),
        ({"eval_epochs": (40,), "eval_period": 1}, "--eval_epochs cannot be combined with --eval_period"),
        ({"eval_epochs": (40,), "eval_from": 1}, "--eval_epochs cannot be combined with --eval_period"),
        ({"mlperf_division": "shut"}, "--mlperf_division=shut: expected one of open, closed"),
        ({"mlperf_ruleset": "2.1"}, "--mlperf_ruleset=2.1: expected a version such as 2.1.0"),
        ({"mlperf_platform": " "}, "--mlperf_platform= : expected a name"),
        ({"seed": 2**32}, "--seed=4294967296: expected at most 2147483647"),
        ({"hparams": {"learning_rate": 0.0}}, "hparam learning_rate is 0.0; expected a finite number above 0"),
        (
            {"hparams": {"lr_warmup_epoch": float("nan")}},
            "hparam lr_warmup_epoch is nan; expected a finite number, at least 0",
        ),
        ({"val_records": (), "target_ap": 0.3}, "--target_ap needs --val_file_pattern"),
        ({"val_records": (), "patience": 3}, "--patience needs --val_file_pattern"),
        ({"val_records": (), "hparams": {"lr_decay_method": "plateau"}}, "lr_decay_method=plateau needs --val_file"),
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


def test_no_evaluation_without_validation_records():
    for mode in ("traineval", "train", "train300"):
        assert config(val_records=(), training_mode=mode).evaluates is False
        assert not config(val_records=(), training_mode=mode, checkpoint_period=1).evaluates_after(1)
    assert config().evaluates is True


def test_required():
    assert required("x", "flag") == "x"
    for missing in (None, ""):
        with pytest.raises(InputError, match="--flag is missing"):
            required(missing, "flag")


def test_existing_file(tmp_path):
    (tmp_path / "a").touch()
    assert existing_file(str(tmp_path / "a"), "f") == str(tmp_path / "a")
    assert existing_file(None, "f") is None
    assert existing_file("", "f") is None
    for missing in (tmp_path, tmp_path / "b"):
        with pytest.raises(InputError, match=f"--f={missing}: there is no such file"):
            existing_file(str(missing), "f")


def test_writable_folder(tmp_path):
    assert writable_folder(str(tmp_path / "a" / "b"), "f") == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises(InputError, match=r"--f=.*cannot create this folder"):
            writable_folder(str(wrong), "f")
    with pytest.raises(InputError, match="--f is missing"):
        writable_folder(None, "f")
    with pytest.raises(InputError, match="--f=/proc: cannot write into this folder"):
        writable_folder("/proc", "f")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_writable_file(tmp_path):
    assert writable_file(None, "f") is None
    assert writable_file("", "f") is None
    assert writable_file(str(tmp_path / "a" / "b"), "f") == str(tmp_path / "a" / "b")
    assert list((tmp_path / "a").iterdir()) == []
    with pytest.raises(InputError, match="is a folder; expected a file name"):
        writable_file(str(tmp_path), "f")
    (tmp_path / "file").touch()
    assert writable_file(str(tmp_path / "file"), "f")
    with pytest.raises(InputError, match=f"--f={tmp_path}/file: cannot create this folder"):
        writable_file(str(tmp_path / "file" / "b"), "f")


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


def test_records_are_sorted(tmp_path):
    for number in (1, 0):
        (tmp_path / f"train-{number:05d}-of-00002.tfrecord").touch()
    assert records_of(f"{tmp_path}/train-*", "f") == tuple(
        f"{tmp_path}/train-{number:05d}-of-00002.tfrecord" for number in (0, 1)
    )
    with pytest.raises(InputError, match="no file matches"):
        records_of(f"{tmp_path}/val-*", "f")


@pytest.fixture
def folder(tmp_path):
    NAMES.write(tmp_path / "train.classes.json")
    for name, categories in (("same", NAMES.to_categories()), ("other", [{"id": 1, "name": "cow"}])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"categories": categories, "images": [], "annotations": []}))
    return tmp_path


def test_class_names(folder):
    records, bare = (f"{folder}/train-00000-of-00001.tfrecord",), (f"{folder}/bare-00000-of-00001.tfrecord",)
    assert class_names_for(records, json_file=None) == NAMES
    assert class_names_for(records, json_file=f"{folder}/same.json") == NAMES
    assert class_names_for(bare, json_file=f"{folder}/same.json") == NAMES
    with pytest.raises(InputError, match=r"other.json: its categories \(1 cow\) are not .* \(1 cat, 7 dog\)"):
        class_names_for(records, json_file=f"{folder}/other.json")
    with pytest.raises(InputError, match=r"names no classes; expected bare\.classes\.json .*--val_json_file$"):
        class_names_for(bare, json_file=None)
