"""Distillation: its loss against NumPy, its step beside the step without it, and trainings with a teacher."""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from drawn_records import draw_records
from jax_process import run_under_jax
from miniature import HPARAMS, build_miniature, miniature_detector
from test_train_step import batch_of

from dataset.class_names import ClassNames
from efficientdet.checkpoints import restore
from efficientdet.checkpoints.checkpoint import Description, read_arrays, write_arrays
from efficientdet.configuration.training_config import TrainingConfig
from efficientdet.exports import saved_model
from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.optimization.build_step import build_train_step
from efficientdet.optimization.optimizer import build_optimizer
from efficientdet.training import start as training_start
from efficientdet.training.loop import train
from model.detection_model import named_variables
from model.distillation import DistilledDetector, pyramid
from object_detection.feature_distillation import feature_loss
from program_support.errors import InputError

pytestmark = pytest.mark.slow

WEIGHT = 3.0
WIDE = 40  # channels of the teacher's pyramid; the student has 24
VARIABLES = "emackpt-final/variables/variables"


def features(channels, seed=0, shape=(3, 5, 4)):
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(channels, channels))
    return (random.normal(size=(*shape, channels)) @ mixing + 2.0).astype(np.float32)


def pearson_distance(student, teacher):
    """1 minus the mean correlation of the channels, by numpy.corrcoef."""
    pairs = zip(*(np.moveaxis(maps, -1, 0).reshape(maps.shape[-1], -1) for maps in (student, teacher)), strict=True)
    return 1.0 - np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])


def gram_distance(student, teacher):
    """1 minus the correlation of the matrices of similarities between all positions."""
    similarities = []
    for maps in (student, teacher):
        flat = maps.reshape(-1, maps.shape[-1]).astype(np.float64)
        standard = (flat - flat.mean(0)) / flat.std(0)
        similarities.append((standard @ standard.T).ravel())
    first, second = similarities
    return 1.0 - first @ second / (np.linalg.norm(first) * np.linalg.norm(second))


def test_equal_widths_against_numpy():
    student, teacher = features(6), features(6, seed=1) + 0.5 * features(6)
    assert float(feature_loss(student, teacher)) == pytest.approx(pearson_distance(student, teacher), rel=1e-4)


@pytest.mark.parametrize("others", [4, 9])
def test_other_widths_against_numpy(others):
    student, teacher = features(6), features(others, seed=1)
    teacher[..., :3] += 2 * student[..., :3]
    wanted = gram_distance(student, teacher)
    assert 0.1 < wanted < 0.95
    assert float(feature_loss(student, teacher)) == pytest.approx(wanted, rel=1e-4)


def test_equal_features_have_no_loss():
    maps = features(6)
    assert float(feature_loss(maps, maps)) == 0.0
    assert float(feature_loss(maps, 3.0 * maps - 1.0)) == pytest.approx(0.0, abs=1e-5)
    twice = np.concatenate([maps, maps], axis=-1)  # the same features in another number of channels
    assert float(feature_loss(maps, twice)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("width", [6, 9])
@pytest.mark.parametrize("extreme", ["constant", "one position", "large"])
def test_gradients_are_finite_and_of_the_student_alone(width, extreme):
    import tensorflow as tf

    student, teacher = features(6), features(width, seed=1)
    if extreme == "constant":
        student[..., :2], teacher[..., 1:] = 0.0, 5.0
    elif extreme == "one position":
        student, teacher = student[:1, :1, :1], teacher[:1, :1, :1]
    else:
        student, teacher = student * 1e4, teacher * 1e-4
    student, teacher = tf.constant(student), tf.constant(teacher)
    with tf.GradientTape() as tape:
        tape.watch([student, teacher])
        loss = feature_loss(student, teacher)
    ours, theirs = tape.gradient(loss, [student, teacher])
    assert theirs is None
    assert np.isfinite(ours).all()
    assert np.isfinite(loss)


def setting(pyramid_filters=WIDE, precision="float32", parts=1, compiled=False, weight=WEIGHT):
    """Student, teacher and a step."""
    student = miniature_detector(precision=precision)
    teacher = miniature_detector(seed=1, precision=precision, num_classes=5, pyramid_filters=pyramid_filters)
    hparams = hyperparameters_of("efficientdet-d0", {"momentum": 0.9})
    distilled = DistilledDetector(student, teacher, weight=weight) if weight else student
    optimizer = build_optimizer(hparams, precision=precision)
    return student, teacher, build_train_step(distilled, optimizer, None, compiled=compiled, accumulate_steps=parts)


def values(detector):
    return {name: np.asarray(variable.value).copy() for name, variable in named_variables(detector.network).items()}


@pytest.mark.parametrize(("pyramid_filters", "compiled"), [(24, False), (WIDE, True)])
def test_a_step_trains_the_student_alone(pyramid_filters, compiled):
    student, teacher, step = setting(pyramid_filters, compiled=compiled)
    batch, names = batch_of(0), set(named_variables(student.network))
    images = student.normalize(batch.images, batch.sizes)
    maps = [
        [
            np.asarray(level)
            for level in keras.Model(detector.network.inputs, pyramid(detector, role="test"))(images, training=training)
        ]
        for detector, training in ((miniature_detector(), True), (teacher, False))
    ]
    distance = pearson_distance if pyramid_filters == 24 else gram_distance
    wanted = WEIGHT * sum(distance(*pair) for pair in zip(*maps, strict=True))
    before, of_teacher = values(student), values(teacher)
    found = {name: float(value) for name, value in step(batch, 0.05).items()}
    assert found["distillation_loss"] == pytest.approx(wanted, rel=1e-3)
    for name, value in values(teacher).items():
        assert (value == of_teacher[name]).all(), name
    assert set(named_variables(student.network)) == names
    *_, plain_step = plain = setting(weight=0)
    without = {name: float(value) for name, value in plain_step(batch, 0.05).items()}
    assert found["loss"] == pytest.approx(without["loss"] + found["distillation_loss"], rel=1e-5)
    heads, body = [], []
    for name, value in values(student).items():
        changed = np.abs((value - before[name]) - (values(plain[0])[name] - before[name])).max()
        (heads if "_net/" in name else body).append(changed)
    assert max(heads) < 1e-6  # the loss of the features reaches what makes them, and nothing behind
    assert min(changed for changed in body if changed) > 0
    assert max(body) > 1e-3


def test_the_loss_falls_and_parts_are_averaged():
    _, _, step = setting(parts=2)
    batch = batch_of(0, size=8)
    losses = [float(step(batch, 0.05)["distillation_loss"]) for _ in range(15)]
    assert 0 < losses[-1] < 0.8 * losses[0] < WEIGHT * 2 * 1.2


def test_mixed_precision():
    *_, step = setting(precision="mixed_float16")
    *_, exact = setting()
    report = step(batch_of(0), 0.05)
    assert bool(report["finite"])
    wanted = float(exact(batch_of(0), 0.05)["distillation_loss"])
    assert float(report["distillation_loss"]) == pytest.approx(wanted, rel=0.05)


def test_jax_takes_the_same_steps(tmp_path, with_jax):
    student, teacher, step = setting()
    for name, detector in (("student", student), ("teacher", teacher)):
        np.savez(tmp_path / f"{name}.npz", **values(detector))
    reports = [{key: float(value) for key, value in step(batch_of(number), 0.02).items()} for number in range(2)]
    run_under_jax(__file__, tmp_path)
    found = json.loads((tmp_path / "reports.json").read_text())
    for ours, theirs in zip(reports, found, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-3)
    with np.load(tmp_path / "end.npz") as arrays:
        for name, value in values(student).items():
            np.testing.assert_allclose(arrays[name], value, rtol=1e-4, atol=1e-4, err_msg=name)


def _jax_half(folder: Path) -> None:
    assert keras.backend.backend() == "jax"
    student, teacher, step = setting(compiled=True)
    for name, detector in (("student", student), ("teacher", teacher)):
        with np.load(folder / f"{name}.npz") as start:
            for key, variable in named_variables(detector.network).items():
                variable.assign(start[key])
    reports = [{key: float(value) for key, value in step(batch_of(number), 0.02).items()} for number in range(2)]
    step.store()
    np.savez(folder / "end.npz", **values(student))
    (folder / "reports.json").write_text(json.dumps(reports))


@pytest.mark.parametrize(
    ("model_name", "widths"), [("efficientdet-d0", 64), ("retinanet-resnet18", 256)], ids=["efficientdet", "retinanet"]
)
def test_pyramids_of_the_families(model_name, widths):
    with keras.StatelessScope():
        detector = build_detector(hyperparameters_of(model_name, {"image_size": 128}), num_classes=2)
    assert [level.shape[1:] for level in pyramid(detector, role="test")] == [
        (side, side, widths) for side in (16, 8, 4, 2, 1)
    ]


def test_a_detector_without_pyramid_is_refused_in_one_line():
    with keras.StatelessScope():
        other = build_detector(hyperparameters_of("ssd300-resnet34", {}), num_classes=2)
    miniature = miniature_detector()
    message = r"the {} \(ssd\) has no pyramid with shared heads; expected EfficientDet or RetinaNet$"
    with pytest.raises(InputError, match=message.format("teacher")):
        DistilledDetector(miniature, other, weight=1.0)
    with pytest.raises(InputError, match=message.format("student")):
        DistilledDetector(other, miniature, weight=1.0)
    with pytest.raises(InputError, match=r"the teacher's pyramid has 12 x 12, 6 x 6 cells; expected .* 8 x 8, 4 x 4$"):
        DistilledDetector(miniature, miniature_detector(image_size=(96, 96)), weight=1.0)


# --- trainings


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_records(tmp_path_factory.mktemp("drawn"), images={"train": 8})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A checkpoint of a wider network for other classes, at another input size."""
    prefix = str(tmp_path_factory.mktemp("teacher") / "ckpt")
    detector = miniature_detector(2, (96, 96), seed=1, pyramid_filters=WIDE)
    hparams = hyperparameters_of("efficientdet-d2", {"image_size": 96}).to_dict()
    classes = ClassNames((1, 2), ("ball", "net")).to_categories()
    write_arrays(
        prefix,
        values(detector),
        Description(model_name="efficientdet-d2", hparams=hparams, categories=classes, weights="raw"),
    )
    return prefix


def build_wide(hparams, *, num_classes, precision="float32", **_others):
    return miniature_detector(num_classes, hparams.input_size, precision=precision, pyramid_filters=WIDE)


@pytest.fixture
def miniature_network(monkeypatch):
    monkeypatch.setattr(training_start, "build_detector", build_miniature)
    monkeypatch.setattr(restore, "build_detector", build_wide)


def run(drawn, model_dir, **changes):
    """Two epochs of two steps of four images."""
    defaults = {
        "hparams": hyperparameters_of("efficientdet-d0", {**HPARAMS, "num_epochs": 2}),
        "records": drawn.records("train"),
        "val_records": (),
        "val_json_file": None,
        "class_names": drawn.class_names,
        "model_dir": str(model_dir),
        "batch_size": 4,
        "eval_batch_size": 4,
        "checkpoint_period": 1,
        "precision": "float32",
        "use_xla": False,
        "training_mode": "train300",
        "calibration_images": 0,
        "loggers": (),
    }
    train(TrainingConfig(**{**defaults, **changes}))
    return read_arrays(str(model_dir / "ckpt-final"))


def test_a_resumed_training_equals_the_unbroken_one_and_has_nothing_of_the_teacher(
    drawn, teacher, tmp_path, miniature_network, monkeypatch, capsys
):
    unbroken = run(drawn, tmp_path / "unbroken", teacher_ckpt=teacher)
    line = f"teacher: efficientdet-d2 of {teacher}, 2 classes, input size of the student; --distillation_weight=1"
    assert line in capsys.readouterr().out
    assert "distillation_loss" in (tmp_path / "unbroken" / "time_log.txt").read_text()
    monkeypatch.setattr(saved_model, "export_saved_model", lambda *_, **__: None)
    run(drawn, tmp_path / "resumed", teacher_ckpt=teacher, stop_epoch=1)
    resumed = run(drawn, tmp_path / "resumed", teacher_ckpt=teacher)
    assert resumed.keys() == unbroken.keys()
    assert all((resumed[name] == unbroken[name]).all() for name in unbroken)

    for arrays in (unbroken, read_arrays(str(tmp_path / "unbroken" / VARIABLES))):
        shapes = list(map(np.shape, arrays.values()))
        assert len(shapes) > 20
        assert any(24 in shape for shape in shapes)
        assert not any(WIDE in shape for shape in shapes)


def test_a_teacher_of_another_kind_ends_the_training_in_one_line(
    drawn, teacher, tmp_path, miniature_network, monkeypatch
):
    def build_other(hparams, *, num_classes, **_others):
        return miniature_detector(num_classes, (96, 96), pyramid_filters=40)

    monkeypatch.setattr(restore, "build_detector", build_other)
    with pytest.raises(InputError, match=r"^--teacher_ckpt=.*/ckpt: the teacher's pyramid has 12 x 12"):
        run(drawn, tmp_path / "out", teacher_ckpt=teacher)


if __name__ == "__main__":
    _jax_half(Path(sys.argv[1]))
