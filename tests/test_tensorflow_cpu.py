"""What is computed another way on a CPU is the same function with the same gradient as TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf

from model import tensorflow_cpu


def value_and_gradients(function, *inputs):
    inputs = [tf.constant(values, tf.float32) for values in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(*inputs)
        total = tf.reduce_sum(outputs * tf.random.stateless_normal(tf.shape(outputs), [0, 1]))
    return [outputs, *tape.gradient(total, inputs)]


def test_silu():
    inputs = np.concatenate([np.random.default_rng(0).normal(size=500) * 5, [-1000, -89, 0, 89, 1000]])
    for found, wanted in zip(value_and_gradients(tensorflow_cpu.silu, inputs),
                             value_and_gradients(tf.nn.silu, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (9, 6), (5, 13)])
def test_depthwise_conv(size, stride, taps):
    random = np.random.default_rng(0)
    inputs, kernel = random.normal(size=(2, *size, 7)), random.normal(size=(taps, taps, 7, 1))
    found = value_and_gradients(lambda *both: tensorflow_cpu.depthwise_conv(*both, stride=stride), inputs, kernel)
    wanted = value_and_gradients(lambda *both: tf.nn.depthwise_conv2d(*both, [1, stride, stride, 1], "SAME"), inputs, kernel)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
