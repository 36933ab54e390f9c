import keras
import numpy as np
import pytest
import tensorflow as tf

from model import batch_norm
from model.batch_norm import BatchNormalization, divide_statistics, join_statistics

INPUTS = np.random.default_rng(0).normal(size=(3, 5, 4, 6)).astype(np.float32) * 3 + 7


def layer_of(channels=6, *, policy="float32", **options):
    """A layer with parameters that are not the trivial ones."""
    layer = BatchNormalization(dtype=policy, **options)
    layer.build((None, 4, 4, channels))
    rng = np.random.default_rng(1)
    layer.set_weights(
        [
            rng.uniform(0.5, 2, channels),
            rng.normal(size=channels),
            rng.normal(size=channels),
            rng.uniform(0.5, 2, channels),
        ]
    )  # gamma, beta, mean, variance
    return layer


def test_keras_own_layer_agrees():
    ours, theirs = layer_of(), keras.layers.BatchNormalization()
    theirs.build((None, 4, 4, 6))
    theirs.set_weights(ours.get_weights())
    for training in (False, True, False):
        np.testing.assert_allclose(ours(INPUTS, training=training), theirs(INPUTS, training=training), atol=1e-4)
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (2, 1, 1, 6), (1, 1, 1, 6)])
def test_the_fused_kernel_agrees_with_the_moments(learns, shape):
    layer = layer_of()
    inputs = tf.constant(np.random.default_rng(2).normal(size=shape).astype(np.float32))
    results, gradients = [], []
    for normalize in (batch_norm._fused, batch_norm._by_moments):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs, mean, variance = normalize(layer, inputs, learns)
            loss = tf.reduce_sum(outputs * tf.sin(outputs))
        results.append((outputs, mean, variance))
        gradients.append(tape.gradient(loss, [inputs, layer.gamma.value, layer.beta.value]))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "mean", "deviation", "dtype", "tolerance"),
    [
        ((3, 5, 4, 6), 7, 3, "float64", 1e-10),
        ((3, 5, 4, 6), 1e4, 1, "float64", 1e-10),  # the mean square minus the squared mean has 8 digits less
        ((3, 5, 4, 6), 1e4, 1, "float32", 2e-3),  # float32 near 1e4 has steps of 1e-3
        ((3, 5, 4, 6), 3, 1, "bfloat16", 1e-2),
        ((2, 3, 3, 6), 5, 0, "float64", 1e-10),  # constant channels
        ((1, 1, 1, 6), 2, 1, "float64", 1e-10),  # one value per channel
    ],
)
def test_moments_in_one_read_agree_with_automatic_differentiation(shape, mean, deviation, dtype, tolerance):
    noise = np.random.default_rng(5).normal(size=shape)
    inputs = tf.cast(noise * deviation + mean, dtype)
    near = tf.fill([6], np.float64(mean) * 0.9999)
    results, slopes = [], []
    for moments in (
        lambda values: batch_norm.moments(values, near, axes=(0, 1, 2)),
        lambda values: tf.nn.moments(tf.cast(values, "float64"), axes=(0, 1, 2), keepdims=True),
    ):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            both = moments(inputs)
            centered = (tf.cast(inputs, both[0].dtype) - both[0]) * tf.math.rsqrt(both[1] + 1e-3)
            loss = tf.reduce_sum(centered * tf.sin(centered)) + tf.reduce_sum(tf.cos(both[0]) * both[1])
        results.append(tf.cast(both, "float64"))
        slopes.append(tf.cast(tape.gradient(loss, inputs), "float64"))
    np.testing.assert_allclose(*results, rtol=1e-6 if dtype != "float64" else 1e-12, atol=1e-10)
    np.testing.assert_allclose(*slopes, atol=tolerance)


def test_a_batch_of_one_row_has_no_variance():
    layer = BatchNormalization(momentum=0.5)
    outputs = layer(tf.fill([1, 1, 1, 3], 4.0), training=True)
    np.testing.assert_allclose(outputs, np.zeros((1, 1, 1, 3)), atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, [2.0] * 3)
    np.testing.assert_allclose(layer.moving_variance, [0.5] * 3)


@pytest.mark.parametrize("normalize", [batch_norm._fused, batch_norm._by_moments])
@pytest.mark.parametrize(("policy", "dtype"), [("mixed_bfloat16", tf.bfloat16), ("mixed_float16", tf.float16)])
def test_moments_stay_float32_under_16_bits(normalize, policy, dtype):
    """A sum of 40,000 values of about 40 overflows float16, and bfloat16 has 8 bits of mantissa."""
    layer = layer_of(2, policy=policy)
    layer.moving_mean.assign([37.0, 43.0])  # as after some steps: the moments are of differences from it
    inputs = tf.cast(np.random.default_rng(3).normal(size=(4, 100, 100, 2)) * 2 + 40, dtype)
    exact = inputs.numpy().astype(np.float64)
    outputs, mean, variance = normalize(layer, inputs, True)
    assert outputs.dtype == dtype
    assert mean.dtype == variance.dtype == tf.float32
    np.testing.assert_allclose(mean, exact.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(variance, exact.var(axis=(0, 1, 2)), rtol=1e-3)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_parameters_are_float32_under_every_policy(policy):
    layer = layer_of(policy=policy)
    outputs = layer(INPUTS, training=True)
    assert outputs.dtype == layer.compute_dtype
    assert {variable.dtype for variable in layer.variables} == {"float32"}
    mean = INPUTS.mean(axis=(0, 1, 2))
    before = layer_of().get_weights()[2]
    np.testing.assert_allclose(layer.moving_mean, before * 0.99 + mean * 0.01, atol=1e-3)


def test_a_frozen_layer_uses_and_keeps_its_statistics():
    layer = layer_of()
    wanted = layer(INPUTS, training=False)
    before = layer.get_weights()
    layer.trainable = False
    np.testing.assert_array_equal(layer(INPUTS, training=True), wanted)
    for one, other in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


# --- several ranks


def statistics_of(values):
    """What a rank sends: mean and mean square of each channel."""
    return tf.concat([tf.reduce_mean(values, axis=(0, 1, 2)), tf.reduce_mean(values**2, axis=(0, 1, 2))], axis=0)


def test_joined_ranks_are_one_with_all_their_images():
    """Outputs, running statistics and slopes, those by way of the other rank's outputs too."""
    halves = [tf.constant(INPUTS[..., :3]), tf.constant(2 * INPUTS[..., 3:] - 3)]
    alone = layer_of(3)
    with tf.GradientTape() as tape:
        tape.watch(halves)
        outputs = alone(tf.concat(halves, axis=0), training=True)
        loss = tf.reduce_sum(outputs * tf.sin(outputs))
    wanted = [outputs, *alone.get_weights(), *tape.gradient(loss, [*halves, alone.gamma.value])]
    ranks = [layer_of(3), layer_of(3)]
    with tf.GradientTape() as tape:
        tape.watch(halves)
        for rank, other in zip(ranks, halves[::-1], strict=True):
            rank.mean_over_ranks = lambda own, other=other: (own + statistics_of(other)) / 2
        outputs = tf.concat([rank(half, training=True) for rank, half in zip(ranks, halves, strict=True)], axis=0)
        loss = tf.reduce_sum(outputs * tf.sin(outputs))
    of_halves, *of_gammas = tape.gradient(loss, [halves, *(rank.gamma.value for rank in ranks)])
    found = [outputs, *ranks[0].get_weights(), *of_halves, sum(of_gammas)]
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)
    for one, other in zip(ranks[0].get_weights(), ranks[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_groups_are_normalized_each_by_itself():
    halves = tf.unstack(tf.constant(np.random.default_rng(4).normal(size=(2, 3, 5, 4, 3)).astype(np.float32) * 3))
    layer, network = layer_of(3), keras.Sequential([keras.Input((5, 4, 3))])
    network.add(layer)
    divide_statistics(network, 2)
    with tf.GradientTape() as tape:
        outputs = layer(tf.concat(halves, axis=0), training=True)
        loss = tf.reduce_sum(outputs * tf.sin(outputs))
    gradient = tape.gradient(loss, layer.gamma.value)
    ranks, results, expected = [layer_of(3), layer_of(3)], [], 0.0
    for rank, half in zip(ranks, halves, strict=True):
        with tf.GradientTape() as tape:
            results.append(rank(half, training=True))
            loss = tf.reduce_sum(results[-1] * tf.sin(results[-1]))
        expected += tape.gradient(loss, rank.gamma.value)
    np.testing.assert_allclose(outputs, tf.concat(results, axis=0), atol=1e-5)
    np.testing.assert_allclose(gradient, expected, atol=1e-3)
    statistics = [rank.get_weights()[2:] for rank in ranks]
    np.testing.assert_allclose(layer.get_weights()[2:], np.mean(statistics, axis=0), rtol=1e-5)
    assert np.abs(np.subtract(*statistics)).max() > 1e-2


def test_only_training_asks_the_others():
    def fail(_):
        raise AssertionError

    images = keras.Input((4, 4, 3))
    norm, wanted = layer_of(3), layer_of(3)(INPUTS[..., :3], training=False)
    network = keras.Model(images, norm(images))
    join_statistics(network, fail)
    np.testing.assert_array_equal(norm(INPUTS[..., :3], training=False), wanted)
    norm.trainable = False
    np.testing.assert_array_equal(norm(INPUTS[..., :3], training=True), wanted)
    norm.trainable = True
    with pytest.raises(AssertionError):
        norm(INPUTS[..., :3], training=True)
