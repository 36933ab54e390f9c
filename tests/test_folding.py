"""Folded convolutions say what convolution and batch norm say one after the other."""

import keras
import numpy as np
import pytest
from keras import layers
from miniature import miniature_detector

from model.batch_norm import BatchNormalization
from model.folding import folded

IMAGES = np.random.default_rng(0).normal(size=(2, 9, 11, 3)).astype(np.float32)


def drawn(network, *, seed=1):
    """The network with weights and statistics among which none could be left out unnoticed."""
    random = np.random.default_rng(seed)
    for weight in network.weights:
        low, high = (0.5, 2.0) if "variance" in weight.path or "gamma" in weight.path else (-1.0, 1.0)
        weight.assign(random.uniform(low, high, weight.shape))
    return network


def before_a_norm(*convolutions):
    """Convolutions one after the other, each with a batch norm."""
    image = keras.Input(IMAGES.shape[1:])
    features = image
    for convolution in convolutions:
        features = BatchNormalization(epsilon=0.01)(convolution(features))
    return drawn(keras.Model(image, features))


def without_norms(monkeypatch):
    """From here on a batch norm that is computed by itself is an error."""

    def refuse(*_, **__):
        raise AssertionError("a batch norm was computed")

    monkeypatch.setattr(BatchNormalization, "call", refuse)


@pytest.mark.parametrize(
    "convolution",
    [
        lambda: layers.Conv2D(5, 3, padding="same"),
        lambda: layers.Conv2D(5, 3, strides=2, padding="same", use_bias=False),
        lambda: layers.DepthwiseConv2D(5, strides=2, padding="same"),
        lambda: layers.DepthwiseConv2D(3, padding="valid", use_bias=False),
        lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
        lambda: layers.Conv2D(6, 3, groups=3, padding="same"),
        lambda: layers.SeparableConv2D(4, 3, padding="same"),
        lambda: layers.SeparableConv2D(4, 3, dilation_rate=2, use_bias=False),
    ],
)
def test_each_kind_of_convolution(monkeypatch, convolution):
    network = before_a_norm(convolution(), layers.Conv2D(2, 1))
    wanted = np.asarray(network(IMAGES, training=False))
    without_norms(monkeypatch)
    np.testing.assert_allclose(folded(network)(IMAGES), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_a_convolution_shared_by_two_norms(monkeypatch):
    """As in the heads, where each level has a batch norm of its own."""
    image, shared = keras.Input(IMAGES.shape[1:]), layers.Conv2D(4, 3, padding="same")
    network = drawn(
        keras.Model(image, [BatchNormalization()(shared(image)), BatchNormalization()(shared(2.0 * image))])
    )
    wanted = network(IMAGES, training=False)
    without_norms(monkeypatch)
    for found, output in zip(folded(network)(IMAGES), wanted, strict=True):
        np.testing.assert_allclose(found, output, rtol=1e-5, atol=1e-5)


class Doubled(layers.Conv2D):
    def call(self, inputs):
        return 2.0 * super().call(inputs)


@pytest.mark.parametrize(
    "elsewhere", ["another layer", "an output", "activation", "no convolution", "mixed_float16", "a subclass"]
)
def test_what_cannot_be_folded_stays(elsewhere):
    image = keras.Input(IMAGES.shape[1:])
    policy = elsewhere if elsewhere == "mixed_float16" else None
    kind = Doubled if elsewhere == "a subclass" else layers.Conv2D
    convolved = kind(4, 3, padding="same", activation="relu" if elsewhere == "activation" else None, dtype=policy)(
        image
    )
    features = layers.Activation("tanh")(convolved) if elsewhere == "no convolution" else convolved
    outputs = [BatchNormalization(dtype=policy)(features)]
    if elsewhere == "another layer":
        outputs.append(layers.Activation("relu")(convolved))
    elif elsewhere == "an output":
        outputs.append(convolved)
    network = drawn(keras.Model(image, outputs))
    found, wanted = (keras.tree.flatten(function(IMAGES)) for function in (folded(network), network))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_weights_of_the_moment():
    network = before_a_norm(layers.Conv2D(5, 3))
    function = folded(network)
    before = np.asarray(function(IMAGES))
    drawn(network, seed=2)
    wanted = np.asarray(network(IMAGES, training=False))
    assert np.abs(wanted - before).max() > 0.1
    np.testing.assert_allclose(function(IMAGES), wanted, rtol=1e-5, atol=1e-5)


def test_a_detector_folds_at_inference_alone(monkeypatch):
    detector = miniature_detector()
    images = np.random.default_rng(3).integers(0, 256, (2, 64, 64, 3), np.uint8)
    sizes = np.int32([[64, 64], [40, 50]])
    wanted = detector.network(detector.normalize(images, sizes), training=False)
    for found, output in zip(detector.outputs(images, sizes), wanted, strict=True):
        np.testing.assert_allclose(found, output, atol=1e-5 * np.abs(output).max())
    without_norms(monkeypatch)
    detector.outputs(images, sizes)
    with pytest.raises(AssertionError, match="a batch norm was computed"):
        detector.outputs(images, sizes, training=True)
