"""Whole trainings of the miniature network on drawn images."""

import functools
import json
import os
import re
import signal
import time
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from drawn_records import draw_records
from miniature import HPARAMS, build_miniature, miniature_detector, reset_once_made
from oracles import losses_of_batch
from PIL import Image

from dataset.class_names import ClassNames, read_class_names
from dataset.input.pipeline import evaluation_dataset, training_dataset
from dataset.input.resize import letterbox
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import read_arrays, read_description
from efficientdet.checkpoints.store import CheckpointStore
from efficientdet.configuration.model_config import ModelConfig
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.devices.distributed import World
from efficientdet.devices.runtime import Runtime
from efficientdet.exports import saved_model
from efficientdet.exports.saved_model import load_saved_model
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.predictor import keras_predictor
from efficientdet.optimization.build_step import build_train_step
from efficientdet.run_log.journal import Journal
from efficientdet.training import guards, validation
from efficientdet.training import loop as train_loop
from efficientdet.training import run as run_module
from efficientdet.training import state as training_state
from efficientdet.training.interruption import StopRequest
from efficientdet.training.loop import TrainingOutcome, train
from efficientdet.training.run import Run
from efficientdet.training.state import initial_state
from model.detection_model import named_variables
from model.multiply_adds import multiply_adds
from object_detection.coco import evaluation as coco_evaluation
from object_detection.coco.measures import MEASURE_NAMES, CocoMeasures
from program_support.errors import InputError

pytestmark = pytest.mark.slow

STEPS = 4  # an epoch: 16 images by 4


export_saved_model = saved_model.export_saved_model


def made_once(make):
    """Call `make` once for each pipeline: its later trainings need no tracing, which takes a second each."""
    made = {}

    def make_once(index, settings, **place):
        key = repr((index.paths, settings, sorted(place.items())))
        if key not in made:
            made[key] = make(index, settings, **place)
        return made[key]

    return make_once


traced_step, traced_predictor = functools.cache(build_train_step), functools.cache(keras_predictor)


@pytest.fixture(scope="module", autouse=True)
def miniature_network():
    """Every training has it; nothing is exported and no records are checked, which takes seconds each."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (training_state, restore):
            patch.setattr(module, "build_detector", build_miniature)
        patch.setattr(training_state, "initial_state", reset_once_made(initial_state))
        patch.setattr(train_loop, "build_train_step", traced_step)
        patch.setattr(validation, "keras_predictor", traced_predictor)
        patch.setattr(validation, "evaluation_dataset", made_once(evaluation_dataset))
        patch.setattr(run_module, "training_dataset", made_once(training_dataset))
        patch.setattr(training_state, "with_suggestions", lambda config, *, log: config)
        patch.setattr(saved_model, "export_saved_model", lambda *_, **__: None)
        yield


class StandInStep:
    """A step that trains nothing and needs no tracing, which takes seconds of each training."""

    def __init__(self, detector, optimizer, *_, **__):
        self._iterations = optimizer.iterations

    def __call__(self, batch, learning_rate, stop_requested):
        self._iterations.assign_add(1)
        losses = {"loss": 1.0, "gradient_norm": 1.0, "positives": 1.0}
        return {**losses, "applied": 1.0, "finite": 1.0, "stop_requests": float(stop_requested)}

    def store(self):
        """Nothing to write."""


@pytest.fixture
def standin_step(monkeypatch):
    monkeypatch.setattr(train_loop, "build_train_step", StandInStep)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 16, "val": 6})


def config(drawn, model_dir, hparams=None, **changes):
    defaults = {
        "hparams": hyperparameters_of("efficientdet-d0", {**HPARAMS, **(hparams or {})}),
        "records": drawn.records("train"),
        "val_records": drawn.records("val"),
        "val_json_file": None,
        "class_names": drawn.class_names,
        "model_dir": str(model_dir),
        "batch_size": 4,
        "eval_batch_size": 4,
        "checkpoint_period": 1,
        "precision": "float32",
        "use_xla": False,
        "calibration_images": 0,  # seconds of each epoch
    }
    return TrainingConfig(**{**defaults, **changes})


@pytest.fixture(scope="module", autouse=True)
def highest_scores_as_thresholds():
    """Evaluations store their highest score as the best threshold: these trainings are too short to find any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            coco_evaluation,
            "thresholds_to_store",
            lambda comparison: {"overall": float(comparison.scores.max()), "classes": {}},
        )
        yield


@pytest.fixture(scope="module")
def unbroken(drawn, tmp_path_factory):
    """(folder, numbers) of a training that evaluates after every epoch."""
    folder = tmp_path_factory.mktemp("unbroken")
    settings = config(
        drawn,
        folder,
        val_json_file=drawn.annotations("val"),
        validate=True,
        lr_tb=True,
        testdev_dir=str(folder / "testdev"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_model, "export_saved_model", export_saved_model)
        return folder, train(settings).metrics


def thresholds_in(path):
    """Those of a file of measures, of a SavedModel or of a checkpoint."""
    if path.suffix == ".json":
        return json.loads(path.read_text())["score_thresholds"]["overall"]
    description = load_saved_model(str(path))[1] if path.is_dir() else read_description(str(path))
    return description.score_thresholds["overall"]


def test_score_thresholds_lie_beside_the_weights_that_they_were_measured_of(unbroken):
    """After each of three epochs."""
    folder, _ = unbroken
    first, second, third, final = (thresholds_in(folder / f"metrics-{name}.json") for name in (1, 2, 3, "final"))
    assert len({first, second, third}) == 3
    assert final == third
    assert [
        thresholds_in(folder / name) for name in ("ckpt-final", "ckpt", "emackpt-final", "ema_weights/emackpt-2")
    ] == [third, third, third, second]
    best = read_description(str(folder / "emackpt-best"))
    assert best.score_thresholds["overall"] == (first, second, third)[best.run["best_epoch"] - 1]


def log_of(folder, name="time_log.txt"):
    lines = (folder / name).read_text().splitlines()
    assert all(line.startswith("DLLL ") for line in lines)
    return [json.loads(line.removeprefix("DLLL ")) for line in lines]


def test_files(unbroken):
    folder, _ = unbroken
    for name in ("ckpt", "ckpt-final", "ema_weights/emackpt-1", "ema_weights/emackpt-2", "ema_weights/emackpt-3"):
        for suffix in (".index", ".data-00000-of-00001", ".json"):
            assert (folder / f"{name}{suffix}").is_file(), name + suffix
    assert (folder / "emackpt-final" / "saved_model.pb").is_file()
    assert sorted(file.name for file in folder.glob("metrics-*")) == [
        "metrics-1.json",
        "metrics-2.json",
        "metrics-3.json",
        "metrics-final.json",
    ]
    assert (folder / "testdev" / "detections_test-dev2017_test_results.json").is_file()
    assert {file.name for file in folder.rglob(".*") if file.is_file()} == {".outputs_of_efficientdet.json"}


def test_configuration_and_classes_lie_beside(unbroken, drawn):
    folder, _ = unbroken
    stored = json.loads((folder / "config.json").read_text())
    assert stored["hparams"]["learning_rate"] == HPARAMS["learning_rate"]
    assert stored["steps_per_epoch"] == STEPS
    assert read_class_names(folder / "classes.json") == drawn.class_names
    for name, weights, step in (
        ("ckpt-final", "raw and averaged", 12),
        ("ckpt", "raw and averaged", 12),
        ("ema_weights/emackpt-2", "averaged", 8),
    ):
        description = read_description(str(folder / name))
        assert (description.weights, description.global_step) == (weights, step)
        assert ClassNames.from_categories(description.categories) == drawn.class_names


def test_average_differs_from_the_weights_and_is_what_is_stored(unbroken):
    folder, _ = unbroken
    state, average = read_arrays(str(folder / "ckpt-final")), read_arrays(str(folder / "ema_weights" / "emackpt-3"))
    assert set(average) == {name for name in state if f"{name}/ExponentialMovingAverage" in state}
    for name, value in average.items():
        assert value.tobytes() == state[f"{name}/ExponentialMovingAverage"].tobytes(), name
        assert (value != state[name]).any(), name
    assert any(name.endswith("moving_variance") for name in average)


def test_exported_model_has_the_averaged_weights(unbroken, drawn):
    folder, _ = unbroken
    signature, description = load_saved_model(str(folder / "emackpt-final"))
    image = np.asarray(Image.open(sorted((drawn.folder / "val").glob("*.jpg"))[0]))
    found = {name: np.asarray(value) for name, value in signature(image[None]).items()}
    restored = restore.restore_detector(ModelConfig(ckpt_path=str(folder / "ckpt-final"), model_name="x"))
    assert description.weights == "averaged"
    boxed, size, scale = letterbox((64, 64))(image)
    image, size = np.asarray(boxed)[None], np.asarray(size)[None]
    wanted = restored.detector.detections(restored.detector.outputs(image, size), size)
    np.testing.assert_allclose(found["scores"], np.asarray(wanted.scores), atol=1e-5)
    count = int(found["count"][0])
    assert count > 0
    corners = np.minimum(np.asarray(wanted.boxes)[0, :count], np.tile(size, 2)) * np.tile(scale, 2)
    np.testing.assert_allclose(found["boxes"][0, :count], np.maximum(corners, 0), atol=1e-3)
    assert set(found) == {"boxes", "scores", "classes", "count"}
    assert set(found["classes"][0][: int(found["count"][0])]) <= set(drawn.class_names.category_ids)


def test_resumed_training_without_evaluations_equals_the_unbroken_one_with_them(unbroken, drawn, tmp_path, capsys):
    train(config(drawn, tmp_path, training_mode="train300", stop_epoch=1))
    assert read_arrays(str(tmp_path / "ckpt"))["global_step"] == STEPS
    assert train(config(drawn, tmp_path, training_mode="train300")) == TrainingOutcome()
    assert f"resumes from {tmp_path}/ckpt-{STEPS} after step {STEPS}, 16 images" in capsys.readouterr().out
    same_arrays(tmp_path / "ckpt-final", unbroken[0] / "ckpt-final")
    assert not list(tmp_path.glob("metrics-*"))
    steps = [entry["data"]["steps"] for entry in log_of(tmp_path) if "fps" in entry.get("data", {})]
    assert steps == [[i, i + 1] for i in range(3 * STEPS)]


def same_arrays(found, wanted):
    found, wanted = read_arrays(str(found)), read_arrays(str(wanted))
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_reading_reports_a_step_later_changes_nothing(unbroken, drawn, tmp_path, monkeypatch):
    """As on an accelerator; and before a checkpoint all reports are read."""
    monkeypatch.setattr(train_loop, "report_lag", lambda: 1)
    check, save, checked = guards.StepGuard.check, CheckpointStore.save, []

    def checking(guard, report, facts):
        check(guard, report, facts)
        checked.append(facts.step)

    def checked_before(store, arrays, description):
        assert checked == list(range(1, description.global_step + 1))
        save(store, arrays, description)

    monkeypatch.setattr(guards.StepGuard, "check", checking)
    monkeypatch.setattr(CheckpointStore, "save", checked_before)
    train(config(drawn, tmp_path, val_json_file=drawn.annotations("val"), checkpoint_steps=3))
    assert checked == list(range(1, 3 * STEPS + 1))
    expected, found = (read_arrays(str(folder / "ckpt-final")) for folder in (unbroken[0], tmp_path))
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    logged, wanted = (
        [line["step"] for line in log_of(folder) if "Latency" in line.get("data", {})]
        for folder in (tmp_path, unbroken[0])
    )
    assert logged == wanted


def test_a_finished_training_is_not_trained_on(unbroken, drawn, capsys):
    folder, numbers = unbroken
    before = read_arrays(str(folder / "ckpt-final"))
    again = train(config(drawn, folder, val_json_file=drawn.annotations("val"), log_filename="again.txt")).metrics
    out = capsys.readouterr().out
    assert "no steps left: all 12 are done; the same command with a larger --num_epochs continues" in out
    assert "nan" not in out
    assert again == pytest.approx(numbers)
    for name, array in read_arrays(str(folder / "ckpt-final")).items():
        assert array.tobytes() == before[name].tobytes(), name


class FailingLogger:
    """A logger that fails where the training ends."""

    name = "failing"

    def event(self, name, facts):
        """Fail at the end of the run."""
        if name == "run_finished":
            raise RuntimeError("the server is gone")

    scalars = images = close = staticmethod(lambda *_: None)


@pytest.mark.usefixtures("standin_step")
@pytest.mark.parametrize(
    ("module", "name", "warning"),
    [
        (validation, "draw_detections", "the report is incomplete: RuntimeError: broken"),
        (validation, "write_measures", "the report is incomplete: RuntimeError: broken"),
        (validation, "write_report", "the report is incomplete: RuntimeError: broken"),
        (Journal, "finish", "the report is incomplete: RuntimeError: broken"),
        (coco_evaluation, "default_resamples", "no confidence intervals: RuntimeError: broken"),
        (run_module, "store_thresholds", "no score thresholds beside the final weights: RuntimeError: broken"),
        (saved_model, "export_saved_model", "emackpt-final is not written: RuntimeError: broken"),
        (train_loop, "open_loggers", "the logger failing ends: RuntimeError: the server is gone"),
    ],
)
def test_nothing_after_the_last_step_ends_a_training(drawn, tmp_path, monkeypatch, capsys, module, name, warning):
    broken = (lambda *_: [FailingLogger()]) if name == "open_loggers" else Mock(side_effect=RuntimeError("broken"))
    monkeypatch.setattr(module, name, broken)
    outcome = train(config(drawn, tmp_path / "out", {"num_epochs": 1}))
    assert outcome.exit_code == 0
    assert outcome.metrics.keys() == set(MEASURE_NAMES)
    out = capsys.readouterr().out
    assert f"{warning}; the weights are not affected\n" in out
    assert f"report: {tmp_path}/out/report.html" in out


def test_the_error_of_a_step_is_not_hidden_by_a_state_that_it_left_unusable(drawn, tmp_path, monkeypatch):
    """A process that lost its peer in a step showed that arrays had been deleted, with a traceback."""
    monkeypatch.setattr(StandInStep, "__call__", Mock(side_effect=RuntimeError("Gloo: connection closed by peer")))
    monkeypatch.setattr(StandInStep, "store", Mock(side_effect=RuntimeError("Array has been deleted")))
    monkeypatch.setattr(train_loop, "build_train_step", StandInStep)
    with pytest.raises(RuntimeError, match="Gloo"):
        train(config(drawn, tmp_path))


def test_resume_refuses_another_network_or_other_classes(unbroken, drawn):
    folder, _ = unbroken
    with pytest.raises(InputError, match="is missing; the checkpoint is of another training; use another --model_dir"):
        train(config(drawn, folder, precision="mixed_float16"))  # it would need the loss scale
    other = ClassNames(drawn.class_names.category_ids, tuple("vwxyz"[: len(drawn.class_names)]))
    with pytest.raises(InputError, match="written for other classes"):
        train(config(drawn, folder, class_names=other))


def test_weights_come_back_bit_for_bit_after_evaluation(drawn, tmp_path):
    state = initial_state(config(drawn, tmp_path), precision="float32", world=World(), log=print)
    variables = named_variables(state.detector.network)
    state.average.packed.assign(state.average.packed.value * 3.0 + 0.1)
    raw = {name: np.asarray(variable.value).tobytes() for name, variable in variables.items()}
    with state.averaged_weights():
        for variable, average in zip(variables.values(), state.average.averages, strict=True):
            assert np.asarray(variable.value).tobytes() == np.asarray(average).tobytes()
    assert {name: np.asarray(variable.value).tobytes() for name, variable in variables.items()} == raw
    with pytest.raises(KeyError), state.averaged_weights():
        raise KeyError
    assert {name: np.asarray(variable.value).tobytes() for name, variable in variables.items()} == raw


def test_small_batches_are_calibrated(unbroken, drawn, tmp_path):
    """Averaged weights equal those without it, statistics differ; running ones of the raw weights do not change."""
    train(config(drawn, tmp_path, training_mode="train300", checkpoint_period=3, calibration_images=None))
    arrays, plain = (read_arrays(str(folder / "ckpt-final")) for folder in (tmp_path, unbroken[0]))
    changed = {name for name, values in plain.items() if (arrays[name] != values).any()}
    average = {name for name in plain if name.endswith("/ExponentialMovingAverage")}
    statistics = {name for name in average if "moving_" in name}
    assert changed
    assert changed <= statistics
    assert len(changed) > 0.9 * len(statistics)
    served = read_arrays(str(tmp_path / "ema_weights" / "emackpt-3"))
    name = min(changed)
    np.testing.assert_array_equal(served[name.removesuffix("/ExponentialMovingAverage")], arrays[name])


def test_mode_train_stops_early_and_evaluates_once_and_freezing(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(saved_model, "export_saved_model", export_saved_model)
    start = {
        name: np.asarray(variable.value).copy()
        for name, variable in named_variables(miniature_detector(len(drawn.class_names)).network).items()
    }
    numbers = train(
        config(
            drawn,
            tmp_path,
            {"num_epochs": 8, "var_freeze_expr": "efficientnet-"},
            training_mode="train",
            num_examples_per_epoch=4,
            checkpoint_period=3,
        )
    ).metrics
    measured = thresholds_in(tmp_path / "metrics-final.json")
    assert (
        [thresholds_in(tmp_path / name) for name in ("ckpt-final", "emackpt-final")] == [measured, measured] != [0, 0]
    )
    assert list(numbers) == list(MEASURE_NAMES)
    assert sorted(file.name for file in tmp_path.glob("metrics-*")) == ["metrics-7.json", "metrics-final.json"]
    assert read_description(str(tmp_path / "ckpt-final")).global_step == 7  # int(0.75 * 8) + 1 epochs of one step
    assert sorted(file.name for file in (tmp_path / "ema_weights").glob("*.index")) == [
        "emackpt-3.index",
        "emackpt-6.index",
    ]
    final = read_arrays(str(tmp_path / "ckpt-final"))
    frozen = [name for name in start if name.startswith("efficientnet-")]
    assert any(name.endswith("moving_mean") for name in frozen)
    for name in frozen:
        assert final[name].tobytes() == start[name].tobytes()
        assert f"{name}/Momentum" not in final
    learnt = [name for name in start if name.endswith(("class-predict/bias", "moving_mean")) and name not in frozen]
    assert len(learnt) > 4
    for name in learnt:
        assert (final[name] != start[name]).any()


@pytest.mark.parametrize(("expression", "message"), [("kernel", "matches no weight"), (".*", "freezes all weights")])
def test_freezing_nothing_or_everything(drawn, tmp_path, expression, message):
    with pytest.raises(InputError, match=message):
        train(config(drawn, tmp_path, {"var_freeze_expr": expression}))


def test_benchmark_without_average_saves_nothing(drawn, tmp_path):
    assert (
        train(
            config(
                drawn,
                tmp_path,
                {"moving_average_decay": 0.0},
                benchmark=True,
                benchmark_steps=3,
                use_fake_data=True,
                val_records=(),
                log_steps=2,
            )
        ).metrics
        == {}
    )
    names = sorted(file.name for file in tmp_path.glob("[!.]*"))
    assert names == ["classes.json", "config.json", "lock", "time_log.txt"]
    steps = [entry["data"]["steps"] for entry in log_of(tmp_path) if "fps" in entry.get("data", {})]
    assert steps == [[0, 2], [2, 3]]
    beside = log_of(tmp_path)[-1]["data"]
    detector = miniature_detector()  # its heads count classes: 3 there, as many here as are drawn
    assert beside["multiply_adds_per_image"] > 2.9 * multiply_adds(detector.network)
    assert beside["machine_multiply_adds_per_second"] > 0
    assert beside["peak_host_memory_bytes"] > 1e8
    assert beside["peak_device_memory_bytes"] is None


def test_loss_that_is_not_finite_stops(drawn, tmp_path):
    message = r"is not finite at step \d+, learning rate 9\.83e\+29, images .*cls_loss.*loss scale 1\): lower --lr"
    with pytest.raises(InputError, match=message):
        train(config(drawn, tmp_path, {"learning_rate": 1e30, "lr_warmup_epoch": 0.0}))


def measures(average_precision):
    """Measures of an evaluation without classes."""
    return CocoMeasures(
        numbers=dict.fromkeys(MEASURE_NAMES, average_precision),
        class_ap={},
        class_objects={},
        images=6,
        unknown_images=0,
        detections=0,
        explanation="",
        score_thresholds={"overall": average_precision, "classes": {}},
    )


def run_of(settings, journal, world):
    return Run(settings, Runtime(precision="float32", use_xla=False), journal, world, clock=time.monotonic)


def validated(drawn, folder, values, **changes):
    """A run after epochs in which nothing is trained and the APs of the weights are these."""
    with Journal(folder) as journal:
        run = run_of(config(drawn, folder, **changes), journal, World())
        validations = validation.Validation(run, StopRequest(World(), saved_step=int, unsaved_steps=int))
        run.start()
        for epoch, value in enumerate(values, start=1):
            assert run.reason_to_stop == ""
            run.state.step += STEPS
            run.state.average.packed.assign(run.state.average.packed.value + 1.0)
            run.state.score_thresholds = measures(value).score_thresholds
            validations.averaged = Mock(return_value=validation.Evaluation(measures(value), None))
            validations.evaluate_epoch(epoch)
    return run


def test_the_best_weights_and_patience(drawn, tmp_path):
    run = validated(drawn, tmp_path, [0.1, 0.3, 0.3], patience=1)
    assert run.reason_to_stop == "AP has not improved in 1 evaluations: stopping after epoch 3"
    best, arrays = read_description(str(tmp_path / "emackpt-best")), read_arrays(str(tmp_path / "emackpt-best"))
    assert (best.weights, best.global_step, best.run["best_ap"]) == ("averaged", 2 * STEPS, 0.3)
    assert best.score_thresholds["overall"] == 0.3
    for name, average in run.state.averages_by_name().items():  # one more was added after the third epoch
        np.testing.assert_allclose(arrays[name] + 1.0, average, atol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.usefixtures("standin_step")
def test_a_target_is_reached_by_a_resumed_training(drawn, tmp_path, capsys, monkeypatch):
    average_precision = iter([0.12, 0.2])
    monkeypatch.setattr(
        "object_detection.coco.evaluation.CocoEvaluator.evaluate",
        # With intervals it measures the last detections again
        lambda evaluator, rows, resamples=0: measures(next(average_precision) if resamples == 0 else 0.0),
    )
    train(config(drawn, tmp_path, {"num_epochs": 1}, target_ap=0.15))
    assert "target AP 0.15 not reached<" in (tmp_path / "report.html").read_text()
    first = read_description(str(tmp_path / "ckpt-final")).run["seconds"]
    train(config(drawn, tmp_path, target_ap=0.15))  # continues, and so does its clock
    assert re.search(
        r"AP 0\.2000 reaches --target_ap=0\.15 after epoch 2, time to target \d+\.\d\d minutes\n",
        capsys.readouterr().out,
    )
    best = read_description(str(tmp_path / "emackpt-best"))
    assert 0 < first < best.run["best_seconds"] < read_description(str(tmp_path / "ckpt-final")).run["seconds"]
    log = log_of(tmp_path)
    before, summary = [line["data"] for line in log if "e2e_training_time" in line.get("data", {})]
    assert "time_to_target" not in before
    assert summary["target_mAP"] == before["target_mAP"] == 15.0
    assert summary["time_to_target"] == pytest.approx(best.run["best_seconds"] / 60)
    reported = re.search(
        r"target AP 0\.15 reached, time to target (\S+) minutes", (tmp_path / "report.html").read_text()
    )
    assert reported[1] == f"{summary['time_to_target']:.2f}"


def progress_of(checkpoint):
    """All but times."""
    run = read_description(str(checkpoint)).run
    return {key: value for key, value in run.items() if not key.endswith("seconds")}


def exactly_the_same(folder, wanted):
    """Every number that a training leaves: weights, momentum, averages, the best, how far it came, the measures."""
    for name in (
        "ckpt-final",
        f"ckpt-{3 * STEPS}",
        "emackpt-best",
        *(f"ema_weights/emackpt-{epoch}" for epoch in (1, 2, 3)),
    ):
        found, expected = (read_arrays(str(place / name)) for place in (folder, wanted))
        assert found.keys() == expected.keys()
        assert [key for key in found if found[key].tobytes() != expected[key].tobytes()] == [], name
        assert progress_of(folder / name) == progress_of(wanted / name), name
    for name in ("metrics-1.json", "metrics-2.json", "metrics-3.json", "metrics-final.json"):
        assert (folder / name).read_text() == (wanted / name).read_text()


class Killed(BaseException):
    """What nothing catches."""


@pytest.mark.slow
def test_killed_between_the_writes_of_an_evaluation_is_mended(unbroken, drawn, tmp_path, monkeypatch):
    """The best weights are never older than the numbers, and an evaluation that was cut short is done again."""
    settings = config(drawn, tmp_path, val_json_file=drawn.annotations("val"))
    places = {"write_arrays": validation, "write_measures": validation}
    writes, original = [], {name: getattr(module, name) for name, module in places.items()}

    def dying_before(write, number):
        def dying(path, *arguments, **options):
            writes.append(Path(path).name)
            if len(writes) == number:
                raise Killed
            original[write](path, *arguments, **options)

        return dying

    for number in (1, 2):  # before the best weights of epoch 1 are written, and between them and the numbers
        writes.clear()
        for write in original:
            monkeypatch.setattr(places[write], write, dying_before(write, number))
        with pytest.raises(Killed):
            train(settings)
        assert writes == ["emackpt-best", "metrics-1.json"][:number]
        assert read_description(str(tmp_path / "ckpt")).run["unfinished_epoch"] == 1
        assert not (tmp_path / "metrics-1.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr(Run, "save_finished", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        train(settings)  # all of epoch 1 is measured, and no checkpoint says so
    monkeypatch.undo()
    train(settings)
    exactly_the_same(tmp_path, unbroken[0])


def signalled(monkeypatch, moment, number, build=traced_step):
    """Sends this process a signal once, when step number `moment` is done and before it is reported."""

    def build_signalling_step(detector, optimizer, *arguments, **options):
        step = build(detector, optimizer, *arguments, **options)

        def signalling(*batch):
            report = step(*batch)
            if int(optimizer.iterations.value) == moment:
                send()
            return report

        signalling.store = step.store
        return signalling

    def send():
        os.kill(os.getpid(), number)
        time.sleep(0.3)

    monkeypatch.setattr(train_loop, "build_train_step", build_signalling_step)


def test_stopped_in_a_last_step_and_an_evaluation_and_another_step_equals_the_unbroken_one(
    unbroken, drawn, tmp_path, monkeypatch, capsys
):
    settings = config(drawn, tmp_path, val_json_file=drawn.annotations("val"))
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)  # perhaps this runs in the background

    def stopped(number, step, *, unfinished, metrics):
        outcome = train(settings)
        assert outcome.exit_code == 128 + number
        line = f"stop requested: saved after step {step}; --resume=auto, the default, resumes"
        assert line in capsys.readouterr().out
        stored = read_description(str(tmp_path / "ckpt"))
        assert (stored.global_step, stored.run["unfinished_epoch"]) == (step, unfinished)
        assert (tmp_path / "metrics-1.json").exists() is metrics

    with monkeypatch.context() as patch:
        signalled(patch, STEPS - 1, signal.SIGTERM)
        stopped(signal.SIGTERM, STEPS, unfinished=1, metrics=False)
    detected = []

    def stopping_predict(detector, **options):
        predict = traced_predictor(detector, **options)

        def predicted(*batch):
            detected.append(batch)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
            return predict(*batch)

        return predicted

    with monkeypatch.context() as patch:
        patch.setattr(validation, "keras_predictor", stopping_predict)
        stopped(signal.SIGINT, STEPS, unfinished=1, metrics=False)
    assert len(detected) == 1  # of two batches
    with monkeypatch.context() as patch:
        signalled(patch, STEPS + 1, signal.SIGINT)
        stopped(signal.SIGINT, STEPS + 2, unfinished=0, metrics=True)
    train(settings)
    exactly_the_same(tmp_path, unbroken[0])


def test_asked_to_stop_in_the_first_step_of_a_benchmark(drawn, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    signalled(monkeypatch, 1, signal.SIGINT, StandInStep)
    outcome = train(config(drawn, tmp_path, benchmark=True, benchmark_steps=3))
    assert outcome == TrainingOutcome(exit_code=130)
    assert "stop requested: no checkpoint was saved; the same command starts from scratch" in capsys.readouterr().out
    assert not list(tmp_path.glob("ckpt*"))


@pytest.mark.usefixtures("standin_step")
def test_a_record_that_cannot_be_used_loses_no_step_before_it(drawn, tmp_path, monkeypatch):
    def damaged(*arguments, **options):
        yield from islice(training_dataset(*arguments, **options), 2)
        raise InputError("the record at byte 7 cannot be used")

    monkeypatch.setattr(run_module, "training_dataset", damaged)
    with pytest.raises(InputError, match="the record at byte 7 cannot be used"):
        train(config(drawn, tmp_path, training_mode="train300"))
    assert read_description(str(tmp_path / "ckpt")).global_step == 2


@pytest.mark.usefixtures("standin_step")
def test_without_validation_records_trains_without_evaluating(drawn, tmp_path, capsys):
    changes = {"num_epochs": 1, "learning_rate": None}
    assert train(config(drawn, tmp_path, changes, val_records=(), loggers=(), lr_per_64=0.17)).metrics == {}
    out = capsys.readouterr().out
    assert "no --val_file_pattern: training without evaluation\n" in out
    assert "warning: the learning rate 0.010625 is 2.1 times the published one for 4 images per step" in out
    assert read_arrays(str(tmp_path / "ckpt-final"))["global_step"] == STEPS
    page = (tmp_path / "report.html").read_text()
    for chart in ("Loss", "Learning rate", "Gradient norm", "Throughput"):  # without any logger
        assert f"<figcaption>{chart}</figcaption><svg" in page


def test_evaluation_batch_size_is_per_device(drawn, tmp_path, monkeypatch):
    def refuse(index, settings, **_):
        raise InputError(f"{settings.batch_size} images")

    monkeypatch.setattr(validation, "evaluation_dataset", refuse)
    with Journal(tmp_path) as journal, StopRequest(World(), saved_step=int, unsaved_steps=int) as stop_request:
        run = run_of(config(drawn, tmp_path, eval_batch_size=3), journal, World(devices=2))
        with pytest.raises(InputError, match=r"^6 images"):
            validation.Validation(run, stop_request).averaged()


@pytest.mark.parametrize("size", [4, 64])
def test_losses_of_validation_do_not_depend_on_the_batch(drawn, tmp_path, size):
    """Six images: some, and more than all of them at a time."""
    with Journal(tmp_path) as journal, StopRequest(World(), saved_step=int, unsaved_steps=int) as stop_request:
        run = run_of(config(drawn, tmp_path, eval_batch_size=size), journal, World())
        losses = validation.Validation(run, stop_request).mean_losses()
    pipeline = run.inputs.config(6, composes=False)
    [(batch, valid)] = evaluation_dataset(run.inputs.validation_index, pipeline)
    assert valid.numpy().all()
    wanted = losses_of_batch(run.state.detector, batch, training=False)
    assert wanted.keys() == {"cls_loss", "box_loss", "reg_l2_loss"}
    assert losses == {name: pytest.approx(float(value), rel=1e-4) for name, value in wanted.items()}


def test_the_last_epochs_are_without_copy_paste(tmp_path, monkeypatch):
    """Two of four epochs have it, and a resumed training sees the same images."""
    streams, dataset, last_batches, seen = [], run_module.training_dataset, 1000, {}

    def recorded(index, settings, *, first_position=0, **place):
        streams.append((first_position, settings.copy_paste is not None))
        yield from islice(dataset(index, settings, first_position=first_position, **place), last_batches)
        raise InputError("unreadable")

    class Step(StandInStep):
        def __call__(self, batch, *arguments):
            report = super().__call__(batch, *arguments)
            seen[int(self._iterations.value)] = np.asarray(batch.images)
            return report

    monkeypatch.setattr(run_module, "training_dataset", recorded)
    monkeypatch.setattr(train_loop, "build_train_step", Step)
    drawn = draw_records(tmp_path / "drawn", images={"train": 16, "val": 4}, with_masks=True)
    changes = {"copy_paste_probability": 1.0, "copy_paste_share": 0.5, "num_epochs": 4}
    settings = {"hparams": changes, "val_records": ()}
    train(config(drawn, tmp_path / "unbroken", **settings))
    assert streams == [(0, True), (32, False)]
    unbroken = dict(seen)
    streams.clear(), seen.clear()
    last_batches = 5
    for _ in range(2):  # stopped after steps 5 and 13, within the second and the fourth epoch
        with pytest.raises(InputError, match="unreadable"):
            train(config(drawn, tmp_path / "resumed", **settings))
    last_batches = 1000
    train(config(drawn, tmp_path / "resumed", **settings))
    assert streams == [(0, True), (20, True), (32, False), (52, False)]
    assert list(unbroken) == list(seen) == list(range(1, 17))
    for step, images in unbroken.items():
        np.testing.assert_array_equal(seen[step], images)
