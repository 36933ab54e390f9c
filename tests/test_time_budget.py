"""Trainings of the miniature network that end in time, by a clock that only steps move."""

from pathlib import Path

import numpy as np
import pytest
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature

from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import read_arrays
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.exports import saved_model as export
from efficientdet.families.registry import hyperparameters_of
from efficientdet.run_log.journal import read_curves
from efficientdet.training import loop as train_loop
from efficientdet.training import start as training_start
from efficientdet.training.build_step import build_train_step
from efficientdet.training.loop import train

PEAK = HPARAMS["learning_rate"]


class Killed(BaseException):
    """No clean-up of the training outlives it."""


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    with pytest.MonkeyPatch.context() as patch:
        for module in (training_start, restore):
            patch.setattr(module, "build_detector", build_miniature)
        patch.setattr(export, "export_saved_model", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 8, "val": 1})


def run(drawn, model_dir, monkeypatch, seconds_of, *, dies_at=None, **changes):
    """Train in epochs of two steps, at most 100; step number n takes seconds_of(n). Returns the seconds it took."""
    now = [1000.0 * len(changes)]
    begun = now[0]

    def build_timed_step(detector, optimizer, *arguments, **options):
        step = build_train_step(detector, optimizer, *arguments, **options)

        def timed(*batch):
            done = int(optimizer.iterations.value)
            if done == dies_at:
                raise Killed
            now[0] += seconds_of(done)
            return step(*batch)

        timed.store = step.store
        return timed

    hparams = hyperparameters_of("efficientdet-d0", {**HPARAMS, "num_epochs": 100})
    settings = {
        "hparams": hparams,
        "records": drawn.records("train"),
        "val_records": (),
        "val_json_file": None,
        "class_names": drawn.class_names,
        "model_dir": str(model_dir),
        "batch_size": 4,
        "eval_batch_size": 4,
        "checkpoint_period": 100,
        "checkpoint_steps": 2,
        "precision": "float32",
        "use_xla": False,
        "training_mode": "train300",
        "calibration_images": 0,
        "loggers": (),
        "max_minutes": 1.0,
        **changes,
    }
    with monkeypatch.context() as patch:
        patch.setattr(train_loop, "build_train_step", build_timed_step)
        train(TrainingConfig(**settings), clock=lambda: now[0])
    return now[0] - begun


def rates(folder):
    """(step, learning rate) of the last step of each epoch."""
    return read_curves(Path(folder) / "time_log.txt")["train/learning_rate"]


def test_a_machine_that_becomes_busy(drawn, tmp_path, monkeypatch, capsys):
    """A minute holds 60 steps of a second; after 20 of them 40 seconds are left, in which 10 of four seconds fit."""
    seconds = run(drawn, tmp_path, monkeypatch, lambda step: 1.0 if step < 20 else 4.0)
    assert 50 <= seconds <= 1.2 * 60
    steps, found = zip(*rates(tmp_path), strict=True)
    assert 28 <= steps[-1] <= 32
    assert max(found) == pytest.approx(PEAK, rel=0.05)
    assert found[-1] < 0.1 * PEAK
    fallen = -np.diff(found[1:]) / PEAK
    assert fallen.min() >= -1e-6
    assert fallen.max() < 0.35  # no cliff: what is left is decayed over
    out = capsys.readouterr().out
    assert "time budget: 0.0 of 1.0 minutes used, 1 s per step: 29 epochs left instead of 99; the learning rate" in out
    assert "4 s per step" in out


def test_a_machine_that_becomes_free_is_used(drawn, tmp_path, monkeypatch):
    seconds = run(drawn, tmp_path, monkeypatch, lambda step: 4.0 if step < 6 else 1.0)
    assert 50 <= seconds <= 60
    step, rate = rates(tmp_path)[-1]
    assert step >= 36
    assert rate < 0.1 * PEAK


def test_no_epoch_follows_the_end_of_the_schedule(drawn, tmp_path, monkeypatch):
    """The last planned epoch takes hardly any time, which leaves time for epochs with a learning rate of zero."""
    run(drawn, tmp_path, monkeypatch, lambda step: 1.0 if step < 58 else 0.001)
    assert [step for step, _ in rates(tmp_path)] == list(range(2, 61, 2))


def test_compilation_counts_and_is_not_taken_for_a_step(drawn, tmp_path, monkeypatch):
    seconds = run(drawn, tmp_path, monkeypatch, lambda step: 1.0 if step else 30.0)
    assert 50 <= seconds <= 60
    assert rates(tmp_path)[-1][0] >= 26


def test_a_killed_one_continues_with_the_same_plan(drawn, tmp_path, monkeypatch):
    def seconds_of(step):
        return 1.0 if step < 20 else 4.0

    run(drawn, tmp_path / "unbroken", monkeypatch, seconds_of)
    for moment in (11, 24):  # in the middle of an epoch, and at its end
        with pytest.raises(Killed):
            run(drawn, tmp_path / "killed", monkeypatch, seconds_of, dies_at=moment)
    run(drawn, tmp_path / "killed", monkeypatch, seconds_of)
    assert dict(rates(tmp_path / "killed")) == dict(rates(tmp_path / "unbroken"))  # to the bit
    found, wanted = (read_arrays(str(tmp_path / folder / "ckpt-final")) for folder in ("killed", "unbroken"))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_more_minutes_continue_a_finished_training_and_none_left_says_so(drawn, tmp_path, monkeypatch, capsys):
    run(drawn, tmp_path, monkeypatch, lambda step: 2.0)
    first = rates(tmp_path)
    assert first[-1][1] < 0.1 * PEAK
    run(drawn, tmp_path, monkeypatch, lambda step: 2.0)
    out = capsys.readouterr().out
    assert f"no steps left: all {first[-1][0]} are done" in out
    assert "--num_epochs or --max_minutes continues" in out
    assert "nan" not in out
    assert rates(tmp_path) == first
    seconds = run(drawn, tmp_path, monkeypatch, lambda step: 2.0, max_minutes=2.0)
    assert 50 <= seconds <= 72
    later = rates(tmp_path)[len(first) :]
    assert 0.4 * PEAK < later[0][1] < 0.6 * PEAK  # as half-way through a training of two minutes
    assert later[-1][1] < 0.1 * PEAK
