import math

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.geometry.box_coding import PLAIN_BOX_CODER
from object_detection.losses import (
    focal_loss,
    focal_loss_of_classes,
    hardest,
    huber_loss,
    l1_loss,
    smooth_l1_loss,
    softmax_cross_entropy,
)

YX = [1, 0, 3, 2]  # from x, y, x, y or dx, dy, dw, dh, and back


def focal(logits, targets, **others):
    options = {"alpha": 0.25, "gamma": 1.5, **others}
    return focal_loss(tf.constant(logits, tf.float32), tf.constant(targets) > 0, **options)


def test_focal_loss_by_hand():
    half = 0.5**1.5 * math.log(2)
    np.testing.assert_allclose(focal([0.0, 0.0], [1, 0]), [0.25 * half, 0.75 * half], rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 1.5, 2.0])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_focal_loss_is_finite_in_value_and_gradient(gamma, label_smoothing):
    logits = tf.constant([[-1000.0, -89, -20, 0, 20, 89, 1000]] * 2)
    targets = tf.constant([[True] * 7, [False] * 7])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = focal_loss(logits, targets, alpha=0.25, gamma=gamma, label_smoothing=label_smoothing)
    gradient = tape.gradient(losses, logits).numpy()
    assert np.isfinite(losses).all()
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[0, 0], -0.25 * (1 - label_smoothing / 2), rtol=1e-5)  # the way back stays steep
    np.testing.assert_allclose(gradient[1, -1], 0.75 * (1 - label_smoothing / 2), rtol=1e-5)


@pytest.mark.parametrize(("gamma", "label_smoothing"), [(1.5, 0.0), (1.5, 0.1), (2.0, 0.1), (1.7, 0.0), (0.0, 0.0)])
def test_the_gradient_of_focal_loss_is_its_slope(gamma, label_smoothing):
    logits, targets = np.linspace(-6, 6, 25), [1, 0]
    options = {"alpha": 0.25, "gamma": gamma, "label_smoothing": label_smoothing}

    def slope(logit, target):
        above, below = (oracles.focal_loss(logit + h, target, **options) for h in (1e-5, -1e-5))
        return (above - below) / 2e-5

    inputs = tf.constant([logits] * 2, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        losses = 3.0 * focal_loss(inputs, tf.constant([[target > 0] * 25 for target in targets]), **options)
    wanted = [[3.0 * slope(logit, target) for logit in logits] for target in targets]
    np.testing.assert_allclose(tape.gradient(losses, inputs), wanted, rtol=1e-4, atol=1e-6)


def test_huber_loss_by_hand():
    found = huber_loss(tf.constant([0.0, 0.05, -0.1, 0.2, -3.0]), delta=0.1)
    np.testing.assert_allclose(found, [0, 0.00125, 0.005, 0.015, 0.295], rtol=1e-5)


@pytest.mark.parametrize("gamma", [1.5, 2.0])
def test_focal_loss_of_classes_has_the_bits_of_focal_loss(gamma):
    rng = np.random.default_rng(0)
    logits = tf.constant(rng.normal(size=(2, 9, 5)) * 5, tf.float32)
    classes = tf.constant(rng.integers(-1, 5, (2, 9)), tf.int32)
    options = {"alpha": 0.25, "gamma": gamma, "label_smoothing": 0.1}
    found = []
    for loss in (
        lambda: focal_loss_of_classes(logits, classes, **options),
        lambda: focal_loss(logits, classes[..., None] == tf.range(5), **options),
    ):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = 3.0 * loss()
        found.append((losses, tape.gradient(losses, logits)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_published_losses_of_retinanet(golden_folder):
    """Sums by the number of positives of each image; without any the divisor is 1. Anchors between have no class."""
    golden = np.load(golden_folder / "families" / "retinanet_losses.npz")
    for image in range(4):
        logits, deltas, boxes = (
            golden[name][image] if name in golden else golden[f"{name}{image}"]
            for name in ("cls_logits", "bbox_regression", "boxes")
        )
        matched, ignored = oracles.match(boxes, golden["anchors"], positive_iou=0.5, negative_iou=0.4, claim="ties")
        positive = np.flatnonzero(matched >= 0)
        assert len(positive) == golden["num_foreground"][image]
        classes = np.full(len(matched), -1, np.int32)
        classes[positive] = golden[f"labels{image}"][matched[positive]]
        focal = focal_loss_of_classes(tf.constant(logits), tf.constant(classes), alpha=0.25, gamma=2.0)
        of_classes = np.float64(focal)[~ignored].sum() / max(len(positive), 1)
        assert of_classes == pytest.approx(golden["classification_per_image"][image], rel=1e-5)
        wanted = to_numpy(PLAIN_BOX_CODER.encode(boxes[matched[positive]][:, YX], golden["anchors"][positive][:, YX]))
        of_boxes = np.float64(l1_loss(deltas[positive] - wanted[:, YX])).sum() / max(len(positive), 1)
        assert of_boxes == pytest.approx(golden["bbox_regression_per_image"][image], rel=1e-5)


def cross_entropy(logits, classes):
    """In float64, one entry at a time."""
    losses = [
        np.logaddexp.reduce(np.float64(row)) - np.float64(row)[number]
        for row, number in zip(logits.reshape(-1, logits.shape[-1]), np.ravel(classes), strict=True)
    ]
    return np.reshape(losses, np.shape(classes))


@pytest.mark.parametrize("shape", [(3, 40, 7), (25, 2), (6, 1)])
def test_softmax_cross_entropy_and_its_slope_against_the_oracle(shape):
    rng = np.random.default_rng(0)
    logits, classes = rng.normal(size=shape) * 4, rng.integers(0, shape[-1], shape[:-1]).astype(np.int32)
    inputs = tf.constant(logits, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        losses = 3.0 * softmax_cross_entropy(inputs, tf.constant(classes))
    np.testing.assert_allclose(losses, 3 * cross_entropy(inputs.numpy(), classes), rtol=1e-5, atol=1e-6)
    slopes = []
    for number in range(shape[-1]):
        above, below = (cross_entropy(logits + h * (np.arange(shape[-1]) == number), classes) for h in (1e-5, -1e-5))
        slopes.append(3 * (above - below) / 2e-5)
    np.testing.assert_allclose(tape.gradient(losses, inputs), np.stack(slopes, axis=-1), rtol=1e-4, atol=1e-5)


def test_softmax_cross_entropy_is_finite_in_value_and_gradient():
    logits = tf.constant([[-3e38, 0, 3e38], [1e6, 1e6, -1e6], [-1e4, -1e4, -1e4], [0, 100, 0]] * 3)
    classes = tf.constant([[0] * 4, [1] * 4, [2] * 4])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = softmax_cross_entropy(logits, tf.reshape(classes, [-1]))
    gradient = tape.gradient(losses, logits).numpy()
    wanted = np.minimum(cross_entropy(logits.numpy(), tf.reshape(classes, [-1]).numpy()), np.finfo(np.float32).max)
    finite = wanted < 3e38
    np.testing.assert_allclose(losses.numpy()[finite], wanted[finite], rtol=1e-5, atol=1e-6)
    assert np.isfinite(losses).all()
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[3], [-1, 1, 0], atol=1e-6)  # the way back stays steep


def test_16_bits_are_judged_in_32():
    for loss in (
        softmax_cross_entropy(tf.constant([[300.0, 0]], tf.float16), tf.constant([1])),
        l1_loss(tf.constant([300.0], tf.float16)),
        smooth_l1_loss(tf.constant([300.5], tf.float16), beta=1.0),
    ):
        assert loss.dtype == tf.float32
        assert float(loss[0]) == 300.0


@pytest.mark.parametrize("beta", [1.0, 1 / 9, 0.01])
def test_smooth_l1_and_its_slope_against_the_oracle(beta):
    errors = np.random.default_rng(0).normal(size=(4, 30)).astype(np.float32)
    inputs = tf.constant(errors)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        losses = smooth_l1_loss(inputs, beta=beta)

    def wanted(error):
        size = np.abs(np.float64(error))
        return np.where(size < beta, size**2 / (2 * beta), size - beta / 2)

    np.testing.assert_allclose(losses, wanted(errors), rtol=1e-5)
    slope = (wanted(np.float64(errors) + 1e-7) - wanted(np.float64(errors) - 1e-7)) / 2e-7
    np.testing.assert_allclose(tape.gradient(losses, inputs), slope, rtol=1e-4, atol=1e-4)


# --- hard negatives


def test_the_hardest_are_the_highest_and_of_equal_ones_the_first():
    random = np.random.default_rng(5)
    losses = random.integers(0, 12, (40, 50)).astype(np.float32)  # many are equal
    losses[3] = 0.0
    counts = np.float32([0, 1, 50, 7, 60, *random.integers(0, 51, 35)])
    found = to_numpy(hardest(losses, counts))
    for row, count in enumerate(counts.astype(int)):
        wanted = sorted(range(50), key=lambda place: (-losses[row, place], place))[:count]
        assert np.flatnonzero(found[row]).tolist() == sorted(wanted)
    assert set(np.unique(found)) == {0, 1}
