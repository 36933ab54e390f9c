import math

import numpy as np
import oracles
import pytest
import tensorflow as tf

from object_detection.losses import focal_loss, huber_loss


def focal(logits, targets, **others):
    options = {"alpha": 0.25, "gamma": 1.5, **others}
    return focal_loss(tf.constant(logits, tf.float32), tf.constant(targets) > 0, **options)


def test_focal_loss_by_hand():
    half = 0.5**1.5 * math.log(2)
    np.testing.assert_allclose(focal([0.0, 0.0], [1, 0]), [0.25 * half, 0.75 * half], rtol=1e-6)


def test_a_badly_missed_object_costs_what_it_should():
    """NVIDIA's form overflows here and charges nothing."""
    np.testing.assert_allclose(focal([-100.0, 100.0, -1000.0], [1, 0, 1]), [25, 75, 250], rtol=1e-6)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 1.5), (0.4, 2.0), (0.5, 0.0)])
def test_focal_loss_against_the_oracle(alpha, gamma, label_smoothing):
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(3, 50)).astype(np.float32) * 4, rng.integers(0, 2, (3, 50))
    options = {"alpha": alpha, "gamma": gamma, "label_smoothing": label_smoothing}
    wanted = [oracles.focal_loss(float(logit), int(target), **options)
              for logit, target in zip(logits.ravel(), targets.ravel(), strict=True)]
    np.testing.assert_allclose(np.ravel(focal(logits, targets, **options)), wanted, rtol=1e-4, atol=1e-6)


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


def test_huber_loss_against_the_oracle():
    errors = np.random.default_rng(0).normal(size=(4, 30)).astype(np.float32)
    wanted = [oracles.huber_loss(float(error), delta=0.5) for error in errors.ravel()]
    np.testing.assert_allclose(np.ravel(huber_loss(errors, delta=0.5)), wanted, rtol=1e-5)


def test_the_slope_of_huber_is_the_error_cut_at_delta():
    errors = tf.constant([0.0, 0.05, -0.07, 0.2, -3.0, 1e6])
    with tf.GradientTape() as tape:
        tape.watch(errors)
        losses = huber_loss(errors, delta=0.1)
    np.testing.assert_allclose(tape.gradient(losses, errors), [0, 0.05, -0.07, 0.1, -0.1, 0.1], rtol=1e-5)


def test_no_entries_have_no_loss():
    assert focal(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0, 3)
    assert huber_loss(tf.zeros([0, 4]), delta=0.1).shape == (0, 4)
