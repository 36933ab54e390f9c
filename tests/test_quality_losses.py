"""Class losses with a score as target and IoU losses of boxes against plain NumPy, alone and in a detector."""

import math

import numpy as np
import oracles
import pytest
import tensorflow as tf
from miniature import miniature_detector
from oracles import to_numpy
from test_dense_detector import batch_of, random_outputs, with_config

from model.dense_detector import LossConfig
from model.detection_model import losses
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.losses import quality_focal_loss
from object_detection.structures import ScoredTargets

ASSIGNERS = {"iou": IouAssigner(), "task aligned": TaskAlignedAssigner()}
COMBINATIONS = [
    ("iou", "quality focal", "giou"),
    ("task aligned", "quality focal", "giou"),
    ("task aligned", "focal", "huber"),
]


def entry(logit, target):
    """The loss of one entry, from its definition."""
    probability = 1 / (1 + math.exp(-logit))
    cross_entropy = -target * math.log(probability) - (1 - target) * math.log(1 - probability)
    return (target - probability) ** 2 * cross_entropy


def test_the_loss_and_its_slope_against_the_oracle():
    random = np.random.default_rng(0)
    logits, classes = random.normal(size=(2, 20, 3)) * 4, random.integers(-1, 3, (2, 20)).astype(np.int32)
    scores = np.where(random.random((2, 20)) < 0.1, 0.0, random.random((2, 20)))
    inputs = tf.constant(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        found = quality_focal_loss(inputs, classes, tf.constant(scores, tf.float32))
    slopes = tape.gradient(found, inputs).numpy()
    for place, logit in np.ndenumerate(logits):
        target = scores[place[:2]] if classes[place[:2]] == place[2] else 0.0
        assert found.numpy()[place] == pytest.approx(entry(logit, target), rel=1e-3, abs=1e-6)
        slope = (entry(logit + 1e-5, target) - entry(logit - 1e-5, target)) / 2e-5
        assert slopes[place] == pytest.approx(slope, rel=1e-3, abs=1e-5)


def test_the_loss_is_finite_at_any_logit():
    logits = tf.constant([[-1e4, -1000.0, -89, -20, 0, 20, 89, 1000, 1e4]] * 3)
    for number in (-1, 3, 8):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            found = quality_focal_loss(logits, tf.constant([number] * 3), tf.constant([0.0, 0.4, 1.0]))
        assert np.isfinite(found).all()
        assert np.isfinite(tape.gradient(found, logits)).all()
        assert found.numpy().min() >= 0


def built(detector, assigner, class_loss, box_loss, **others):
    return with_config(
        detector,
        assigner=ASSIGNERS[assigner],
        losses=LossConfig(class_loss=class_loss, box_loss=box_loss, box_loss_weight=2.0, **others),
    )


@pytest.fixture(scope="module")
def detector():
    return miniature_detector()


def wanted_losses(detector, logits, deltas, targets, config):
    """With plain loops."""
    scored = isinstance(targets, ScoredTargets) and config.class_loss != "focal"
    class_sum, box_sum, normalizer = 0.0, 0.0, 1.0
    for place, positive in np.ndenumerate(targets.positive):
        anchor, target, weight = detector.anchors[place[1]], 0.0, 0.0
        if positive:
            predicted, box = (oracles.decode(values[place], anchor) for values in (deltas, targets.box_deltas))
            weight = targets.scores[place] if scored else 1.0
            target = targets.scores[place] if scored else oracles.iou(predicted, box)
            normalizer += weight
            if config.box_loss == "huber":
                box_sum += weight * sum(
                    oracles.huber_loss(float(error), delta=0.1) for error in deltas[place] - targets.box_deltas[place]
                )
            else:
                box_sum += weight * (1 - oracles.generalized_iou(predicted, box, config.box_loss))
        for number, logit in enumerate(logits[place]):
            is_class = bool(positive) and number == targets.classes[place]
            class_sum += (
                oracles.focal_loss(float(logit), int(is_class), alpha=0.25, gamma=1.5)
                if config.class_loss == "focal"
                else entry(float(logit), target if is_class else 0.0)
            )
    coordinates = 4 if config.box_loss == "huber" else 1
    return {"cls_loss": class_sum / normalizer, "box_loss": 2 * box_sum / (coordinates * normalizer)}


@pytest.mark.parametrize(("assigner", "class_loss", "box_loss"), COMBINATIONS)
def test_losses_of_a_detector_against_the_oracle_and_in_halves(detector, assigner, class_loss, box_loss):
    """Sums and counts of two halves, as of two ranks, give the losses of the whole batch."""
    detector = built(detector, assigner, class_loss, box_loss)
    random = np.random.default_rng(3)
    batch, (logits, deltas) = batch_of(random), random_outputs(random)
    logits, deltas = logits - 2, deltas * 0.3
    targets = to_numpy(detector.targets(batch.objects, (logits, deltas)))
    assert targets.positive.sum() > 5
    counts = {name: float(value) for name, value in detector.counts(targets).items()}
    found = {name: float(value) for name, value in losses(detector, (logits, deltas), targets, counts).items()}
    assert found == pytest.approx(wanted_losses(detector, logits, deltas, targets, detector.config.losses), rel=1e-3)

    sums, of_halves = {}, {}
    for half in (slice(0, 1), slice(1, 2)):
        part = type(targets)(*(values[half] for values in targets))
        outputs = logits[half], deltas[half]
        for total, values in ((of_halves, detector.counts(part)), (sums, detector.loss_sums(outputs, part))):
            total.update({name: total.get(name, 0.0) + float(value) for name, value in values.items()})
    assert of_halves == pytest.approx(counts, rel=1e-5)
    divisors = detector.normalizers(of_halves)
    assert {name: value / divisors[name] for name, value in sums.items()} == pytest.approx(found, rel=1e-5)
