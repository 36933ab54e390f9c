"""Time budgets of runs in which nothing is trained, by a clock that only steps move."""

from unittest.mock import Mock

import numpy as np
import pytest
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature

from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime
from efficientdet.families.registry import hyperparameters_of
from efficientdet.run_log.journal import Journal
from efficientdet.training import state as training_state
from efficientdet.training.run import Run, TimeBudget
from efficientdet.training.validation import Reporter

PEAK = HPARAMS["learning_rate"]


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_state, "build_detector", build_miniature)
        yield


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 8, "val": 1})


def run(drawn, model_dir, seconds_of, *, dies_at=None, max_minutes=1.0, calibration_images=None):
    """Return the seconds of a process in epochs of two steps, and (step, learning rate) of each epoch's last step.

    Step number n takes seconds_of(n), the first one of a process for its compilation. At most 100 epochs, with a
    checkpoint after each one.
    """
    now = [1000.0]
    settings = TrainingConfig(
        hparams=hyperparameters_of("efficientdet-d0", {**HPARAMS, "num_epochs": 100}),
        records=drawn.records("train"),
        val_records=(),
        val_json_file=None,
        class_names=drawn.class_names,
        model_dir=str(model_dir),
        batch_size=4,
        eval_batch_size=4,
        checkpoint_period=100,
        checkpoint_steps=2,
        training_mode="train300",
        max_minutes=max_minutes,
        calibration_images=calibration_images,
    )
    with Journal(model_dir) as journal:
        run = Run(settings, Runtime(precision="float32", use_xla=False), journal, World(), clock=lambda: now[0])
        rates, loss = [], None
        run.start()
        budget = TimeBudget(run)
        while run.state.step < run.last_step:
            rate, loss = run.learning_rate, 1.0
            with run.stopwatch.measuring("compilation" if run.state.step == run.first_step else "compute"):
                now[0] += seconds_of(run.state.step)
            run.state.step += 1
            run.state.progress.images_seen += run.global_batch_size
            if run.state.step == dies_at:
                break
            if run.state.step % run.steps_per_epoch == 0:
                rates.append((run.state.step, rate))
                budget.plan()
                run.save_unfinished(run.epoch)
                run.save_finished(run.epoch)
        else:
            Reporter(run, Mock()).end(loss=loss)
    return now[0] - 1000.0, rates


def test_a_machine_that_becomes_busy(drawn, tmp_path, capsys):
    """A minute holds 60 steps of a second; after 20 of them 40 seconds are left, in which 10 of four seconds fit."""
    seconds, rates = run(drawn, tmp_path, lambda step: 1.0 if step < 20 else 4.0)
    assert 50 <= seconds <= 1.2 * 60
    steps, found = zip(*rates, strict=True)
    assert 28 <= steps[-1] <= 32
    assert max(found) == pytest.approx(PEAK, rel=0.05)
    assert found[-1] < 0.1 * PEAK
    fallen = -np.diff(found[1:]) / PEAK
    assert fallen.min() >= -1e-6
    assert fallen.max() < 0.35  # no cliff: what is left is decayed over
    out = capsys.readouterr().out
    assert "time budget: 0.0 of 1.0 minutes used, 1 s per step: 29 epochs left instead of 99; the learning rate" in out
    assert "4 s per step" in out


def test_a_machine_that_becomes_free_is_used(drawn, tmp_path):
    seconds, rates = run(drawn, tmp_path, lambda step: 4.0 if step < 6 else 1.0)
    assert 50 <= seconds <= 60
    step, rate = rates[-1]
    assert step >= 36
    assert rate < 0.1 * PEAK


def test_no_epoch_follows_the_end_of_the_schedule(drawn, tmp_path):
    """The last planned epoch takes hardly any time, which leaves time for epochs with a learning rate of zero."""
    _, rates = run(drawn, tmp_path, lambda step: 1.0 if step < 58 else 0.001)
    assert [step for step, _ in rates] == list(range(2, 61, 2))


def test_compilation_counts_and_is_not_taken_for_a_step(drawn, tmp_path):
    seconds, rates = run(drawn, tmp_path, lambda step: 1.0 if step else 30.0)
    assert 50 <= seconds <= 60
    assert rates[-1][0] >= 26


def test_time_is_left_for_the_calibration(drawn, tmp_path):
    ends = {images: run(drawn, tmp_path / str(images), lambda _: 1.0, calibration_images=images) for images in (0, 16)}
    assert [rates[-1][0] for _, rates in ends.values()] == [60, 56]  # as many steps as its images take


def test_a_killed_one_continues_with_the_same_plan(drawn, tmp_path):
    def seconds_of(step):
        return 1.0 if step < 20 else 4.0

    _, unbroken = run(drawn, tmp_path / "unbroken", seconds_of)
    killed = {}
    for moment in (11, 24, None):  # in the middle of an epoch, and at its end
        killed |= dict(run(drawn, tmp_path / "killed", seconds_of, dies_at=moment)[1])
    assert killed == dict(unbroken)  # to the bit


def test_more_minutes_continue_a_finished_training_and_none_left_says_so(drawn, tmp_path, capsys):
    _, first = run(drawn, tmp_path, lambda step: 2.0)
    assert first[-1][1] < 0.1 * PEAK
    assert run(drawn, tmp_path, lambda step: 2.0)[1] == []
    out = capsys.readouterr().out
    assert f"no steps left: all {first[-1][0]} are done" in out
    assert "--num_epochs or --max_minutes continues" in out
    assert "nan" not in out
    seconds, later = run(drawn, tmp_path, lambda step: 2.0, max_minutes=2.0)
    assert 50 <= seconds <= 72
    assert 0.4 * PEAK < later[0][1] < 0.6 * PEAK  # as half-way through a training of two minutes
    assert later[-1][1] < 0.1 * PEAK
