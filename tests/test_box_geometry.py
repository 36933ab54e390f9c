import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.geometry.box_geometry import IOU_KINDS, clip_boxes, generalized_iou, iou, pairwise_iou

ONE = [0.0, 0.0, 2.0, 2.0]
OTHER = [1.0, 1.0, 3.0, 3.0]  # intersection 1, union 7, hull 9, centers 2 apart squared, diagonal squared 18


def test_overlaps_by_hand():
    others = tf.constant([ONE, OTHER, [2.0, 0, 4, 2], [1.0, 1, 1, 1], [3.0, 3, 1, 1]])
    overlaps = to_numpy(pairwise_iou(tf.constant([ONE]), others))
    np.testing.assert_allclose(overlaps, [[1, 1 / 7, 0, 0, 0]], rtol=1e-6)


def test_pairs_are_counted_first_by_second():
    rng = np.random.default_rng(0)
    boxes, others = oracles.random_boxes(rng, (2, 3)), oracles.random_boxes(rng, (2, 5))
    overlaps = to_numpy(pairwise_iou(boxes, others))
    assert overlaps.shape == (2, 3, 5)
    wanted = [[[oracles.iou(box, other) for other in others[i]] for box in boxes[i]] for i in range(2)]
    np.testing.assert_allclose(overlaps, wanted, atol=1e-6)
    np.testing.assert_allclose(iou(boxes[0, 1], others[0, 4]), wanted[0][1][4], atol=1e-6)


def test_clipping_goes_by_the_size_of_each_image():
    boxes = tf.constant([[[-5.0, -5, 5, 50]], [[30.0, 30, 90, 90]]])
    clipped = clip_boxes(boxes, tf.constant([[10, 20], [40, 80]], tf.int32))
    np.testing.assert_array_equal(clipped, [[[0, 0, 5, 20]], [[30, 30, 40, 80]]])


@pytest.mark.parametrize("kind", IOU_KINDS)
def test_random_pairs_against_the_oracle(kind):
    rng = np.random.default_rng(1)
    boxes, others = oracles.random_boxes(rng, (60,)), oracles.random_boxes(rng, (60,))
    others[:5] = boxes[:5]
    wanted = [oracles.generalized_iou(box, other, kind) for box, other in zip(boxes, others, strict=True)]
    np.testing.assert_allclose(generalized_iou(boxes, others, kind=kind), wanted, atol=2e-5)


@pytest.mark.parametrize("kind", IOU_KINDS)
def test_empty_and_huge_boxes_give_finite_values_and_gradients(kind):
    degenerate = tf.constant(
        [
            [0.0, 0, 0, 0],
            [5, 5, 5, 5],
            [5, 5, 5, 9],
            [5, 5, 9, 5],
            [9, 9, 5, 5],
            [0, 0, 1e-6, 1e-6],
            [0, 0, 4, 4],
            [1e4, 1e4, 1e4, 1e4],
            [1e30, 0, 1e30, 4],  # a center offset of 1e30
            [-3e38, -3e38, 3e38, 3e38],
            [-np.inf, -np.inf, np.inf, np.inf],
            [np.inf, 0, np.inf, 4],
        ]
    )
    boxes = tf.Variable(tf.repeat(degenerate, len(degenerate), axis=0))
    others = tf.Variable(tf.tile(degenerate, [len(degenerate), 1]))  # every one with every other
    with tf.GradientTape() as tape:
        overlaps = generalized_iou(boxes.value(), others.value(), kind=kind)
        total = tf.reduce_sum(overlaps)
    assert np.isfinite(overlaps).all()
    for gradient in tape.gradient(total, [boxes, others]):
        assert np.isfinite(gradient).all()
