import keras
import numpy as np
import pytest
from keras import initializers

from model.detection_model import draw_on_host


def network_of(initializer):
    """A model with one kernel [3, 3, 40, 50], built where its values can still be chosen."""
    inputs = keras.Input((4, 4, 40))
    layer = keras.layers.Conv2D(50, 3, kernel_initializer=initializer)
    return keras.Model(inputs, layer(inputs))


def drawn(initializer):
    with keras.StatelessScope():
        network = network_of(initializer)
        draw_on_host(network)
    return np.asarray(network.trainable_variables[0].value)


@pytest.mark.parametrize(
    "initializer",
    [
        initializers.RandomNormal(mean=0.5, stddev=0.01, seed=3),
        initializers.RandomUniform(-0.2, 0.4, seed=3),
        initializers.GlorotUniform(seed=3),
        initializers.VarianceScaling(seed=3),
        initializers.VarianceScaling(2.0, "fan_out", "truncated_normal", seed=3),
        initializers.VarianceScaling(2.0, "fan_avg", "untruncated_normal", seed=3),
        initializers.Ones(),
        initializers.Constant(-4.6),
    ],
)
def test_values_have_the_distribution_of_keras_initializers(initializer):
    ours, theirs = drawn(initializer), np.asarray(network_of(initializer).trainable_variables[0].value)
    assert ours.dtype == theirs.dtype == np.float32
    deviation = theirs.std()
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=max(0.03 * deviation, 1e-6))
    np.testing.assert_allclose(ours.std(), deviation, rtol=0.02)
    for share in (0.01, 0.25, 0.75, 0.99):
        np.testing.assert_allclose(np.quantile(ours, share), np.quantile(theirs, share), atol=0.1 * deviation + 1e-6)
    if getattr(initializer, "distribution", None) == "truncated_normal":
        assert abs(ours).max() <= abs(theirs).max() * 1.01


def test_a_seed_gives_the_same_values_and_other_seeds_others():
    one, again, other = (drawn(initializers.VarianceScaling(seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_an_unknown_initializer_is_used_as_it_is():
    np.testing.assert_array_equal(
        drawn(initializers.TruncatedNormal(seed=4)), network_of(initializers.TruncatedNormal(seed=4)).weights[0].value
    )
