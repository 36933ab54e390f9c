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
    for found, wanted in zip(
        value_and_gradients(tensorflow_cpu.silu, inputs), value_and_gradients(tf.nn.silu, inputs), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (9, 6), (5, 13)])
def test_depthwise_conv(size, stride, taps):
    random = np.random.default_rng(0)
    inputs, kernel = random.normal(size=(2, *size, 7)), random.normal(size=(taps, taps, 7, 1))
    found = value_and_gradients(lambda *both: tensorflow_cpu.depthwise_conv(*both, stride=stride), inputs, kernel)
    wanted = value_and_gradients(
        lambda *both: tf.nn.depthwise_conv2d(*both, [1, stride, stride, 1], "SAME"), inputs, kernel
    )
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_kernel_gradient_of_a_depthwise_conv_is_summed_in_float32():
    """In bfloat16, of 8 significant bits, a sum of thousands of terms loses its last ones."""
    random = np.random.default_rng(0)
    inputs, kernel = (tf.constant(random.uniform(size=shape), tf.bfloat16) for shape in ((8, 32, 32, 3), (5, 5, 3, 1)))
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        outputs = tf.reduce_sum(tf.cast(tensorflow_cpu.depthwise_conv(inputs, kernel, stride=1), tf.float32))
    found = tape.gradient(outputs, kernel)
    padded = np.pad(np.asarray(tf.cast(inputs, tf.float64)), [(0, 0), (2, 2), (2, 2), (0, 0)])
    wanted = np.array([[padded[:, i : i + 32, j : j + 32].sum((0, 1, 2)) for j in range(5)] for i in range(5)])
    assert found.dtype == tf.bfloat16
    np.testing.assert_allclose(np.asarray(tf.cast(found, tf.float64))[..., 0], wanted, rtol=2**-8)
