"""Trainings of the miniature network that continue: with another batch, or beside another one."""

import shutil
from pathlib import Path

import pytest
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature
from stored_checkpoints import steps_in

from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import checkpoint_prefix, read_arrays
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.exports import saved_model as export
from efficientdet.families.registry import hyperparameters_of
from efficientdet.training import state as training_state
from efficientdet.training.guards import sole_training
from efficientdet.training.loop import train
from program_support.errors import InputError


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    with pytest.MonkeyPatch.context() as patch:
        for module in (training_state, restore):
            patch.setattr(module, "build_detector", build_miniature)
        patch.setattr(export, "export_saved_model", lambda *_, **__: None)  # half of the time
        yield


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 16, "val": 1})


def run(drawn, model_dir, **changes):
    """Three epochs of four steps of four images, with a checkpoint after every second step."""
    defaults = {
        "hparams": hyperparameters_of("efficientdet-d0", HPARAMS),
        "records": drawn.records("train"),
        "val_records": (),
        "val_json_file": None,
        "class_names": drawn.class_names,
        "model_dir": str(model_dir),
        "batch_size": 4,
        "eval_batch_size": 4,
        "checkpoint_period": 3,
        "checkpoint_steps": 2,
        "precision": "float32",
        "use_xla": False,
        "training_mode": "train300",
        "calibration_images": 0,
        "loggers": (),
    }
    train(TrainingConfig(**{**defaults, **changes}))


@pytest.fixture(scope="module")
def two_epochs(drawn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_epochs")
    run(drawn, folder, stop_epoch=2)
    return folder


@pytest.fixture
def folder(two_epochs, tmp_path):
    """Checkpoints after steps 4, 6 and 8."""
    return Path(shutil.copytree(two_epochs, tmp_path / "model_dir"))


def test_a_larger_batch_makes_fewer_steps_and_none_is_lost(drawn, folder, capsys):
    run(drawn, folder, batch_size=8, checkpoint_steps=1)
    out = capsys.readouterr().out
    assert f"resumes from {folder}/ckpt-8 after step 8, 32 images" in out
    assert "32 images seen correspond to step 4" in out
    assert steps_in(folder) == [5, 6, 8]  # 6 took the place of another
    assert read_arrays(folder / "ckpt-6")["global_step"] == read_arrays(folder / "ckpt")["global_step"] == 6
    newest = CheckpointStore(folder).newest(log=print)
    assert (newest.prefix, newest.description.run["images_seen"]) == (str(folder / "ckpt-6"), 48)
    assert checkpoint_prefix(folder) == str(folder / "ckpt-final")


def test_the_folder_of_a_running_training_is_left_alone(drawn, folder):
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name != "lock"}
    with sole_training(str(folder), World()), pytest.raises(InputError, match="writes into this folder"):
        run(drawn, folder)
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.name != "lock"} == before
