import keras
import numpy as np
import tensorflow as tf

from model.detection_model import named_variables
from model.heads import HeadConfig, build_box_head, build_class_head

PYRAMID = [(4, 4), (2, 2)]  # cells of levels 3 and 4
ANCHORS = 2


def heads_of(config, *, num_classes=3, filters=8, sizes=PYRAMID):
    """A model from a pyramid to class logits and box deltas."""
    inputs = [keras.Input((*size, filters)) for size in sizes]
    return keras.Model(
        inputs,
        [
            build_class_head(inputs, config, num_anchors=ANCHORS, num_classes=num_classes),
            build_box_head(inputs, config, num_anchors=ANCHORS),
        ],
    )


def pyramid_of(rng, *, batch=2, filters=8):
    return [rng.normal(size=(batch, *size, filters)).astype(np.float32) for size in PYRAMID]


def randomised(network, rng):
    for name, variable in named_variables(network).items():
        low = 0.5 if name.endswith(("gamma", "moving_variance")) else -0.5
        variable.assign(rng.uniform(low, low + 1, variable.shape))
    return named_variables(network)


def reference(features, weights, *, net, level, depth):
    """The head of one level from TensorFlow's own operations."""
    kind = net.removesuffix("_net")

    def separable(features, layer):
        depthwise, pointwise, bias = (
            weights[f"{net}/{layer}/{role}"].value for role in ("depthwise_kernel", "pointwise_kernel", "bias")
        )
        return tf.nn.separable_conv2d(features, depthwise, pointwise, [1, 1, 1, 1], "SAME") + bias

    for i in range(depth):
        features = separable(features, f"{kind}-{i}")
        gamma, beta, mean, variance = (
            weights[f"{net}/{kind}-{i}-bn-{level}/{role}"].value
            for role in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        features = tf.nn.silu(tf.nn.batch_normalization(features, mean, variance, beta, gamma, 1e-3))
    return separable(features, f"{kind}-predict").numpy()


def test_the_heads_against_tensorflows_own_operations():
    rng = np.random.default_rng(0)
    network = heads_of(HeadConfig(filters=8, depth=2))
    weights = randomised(network, rng)
    pyramid = pyramid_of(rng)
    for output, net, values in zip(network(pyramid), ("class_net", "box_net"), (3, 4), strict=True):
        maps = [
            reference(features, weights, net=net, level=level, depth=2)
            for level, features in zip((3, 4), pyramid, strict=True)
        ]
        by_hand = [
            [
                maps[level][image, row, column].reshape(ANCHORS, values)[anchor]
                for level, (rows, columns) in enumerate(PYRAMID)
                for row in range(rows)
                for column in range(columns)
                for anchor in range(ANCHORS)
            ]
            for image in range(2)
        ]
        np.testing.assert_allclose(output, by_hand, atol=1e-4)


def test_an_untrained_head_believes_in_one_percent_and_in_its_anchors():
    class_logits, box_deltas = heads_of(HeadConfig(filters=8, depth=1))(
        [np.zeros((1, *s, 8), np.float32) for s in PYRAMID]
    )
    assert class_logits.shape == (1, 40, 3)
    assert box_deltas.shape == (1, 40, 4)
    np.testing.assert_allclose(class_logits, np.full((1, 40, 3), -4.59512), atol=1e-4)
    np.testing.assert_array_equal(box_deltas, np.zeros((1, 40, 4)))


def test_ordinary_convolutions():
    network = heads_of(HeadConfig(filters=8, depth=1, separable_conv=False, activation="relu"))
    names = set(named_variables(network))
    assert "class_net/class-0/kernel" in names
    assert not any("pointwise" in name for name in names)
    class_logits, _ = network(pyramid_of(np.random.default_rng(0)))
    assert np.isfinite(class_logits).all()


def test_no_hidden_layer_one_level_and_one_class():
    network = heads_of(HeadConfig(filters=8, depth=0), num_classes=1, sizes=[(1, 1)])
    class_logits, box_deltas = network([np.zeros((3, 1, 1, 8), np.float32)])
    assert class_logits.shape == (3, 2, 1)
    assert box_deltas.shape == (3, 2, 4)
