import math

import numpy as np
import oracles
import tensorflow as tf
from oracles import to_numpy

from object_detection.box_coding import decode_boxes, encode_boxes

ANCHOR = [0.0, 0.0, 40.0, 20.0]
BOX = [10.0, 20.0, 30.0, 60.0]  # centre (20, 40), 20 high, 40 wide; the anchor's (20, 10), 40 high, 20 wide
DELTAS = [0.0, 1.5, math.log(0.5), math.log(2.0)]


def test_there_and_back_by_hand():
    np.testing.assert_allclose(encode_boxes(tf.constant(BOX), tf.constant(ANCHOR)), DELTAS, atol=1e-6)
    np.testing.assert_allclose(decode_boxes(tf.constant(DELTAS), tf.constant(ANCHOR)), BOX, atol=1e-5)


def test_the_anchor_itself_has_offsets_of_exactly_zero():
    anchors = tf.constant([ANCHOR, [-3.5, 2.25, 11.125, 9.75]])
    np.testing.assert_array_equal(encode_boxes(anchors, anchors), np.zeros((2, 4)))


def test_random_boxes_against_the_oracle():
    rng = np.random.default_rng(0)
    boxes, anchors = oracles.random_boxes(rng, (3, 40)), oracles.random_boxes(rng, (40,))
    deltas = to_numpy(encode_boxes(boxes, anchors))
    wanted = [[oracles.encode(box, anchor) for box, anchor in zip(row, anchors, strict=True)] for row in boxes]
    np.testing.assert_allclose(deltas, wanted, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(decode_boxes(deltas, anchors), boxes, atol=1e-3)
    drawn = rng.normal(size=(40, 4)).astype(np.float32)
    wanted = [oracles.decode(offsets, anchor) for offsets, anchor in zip(drawn, anchors, strict=True)]
    np.testing.assert_allclose(decode_boxes(drawn, anchors), wanted, atol=1e-3)


def test_empty_boxes_and_anchors_have_finite_offsets_and_gradients():
    boxes = tf.Variable([[5.0, 5, 5, 5], [5, 5, 5, 9], [9, 9, 5, 5], [0, 0, 10, 10]])
    anchors = tf.constant([[0.0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 5, 5]])
    with tf.GradientTape() as tape:
        deltas = encode_boxes(boxes.value(), anchors)
        total = tf.reduce_sum(deltas)
    assert np.isfinite(deltas).all()
    assert np.isfinite(tape.gradient(total, boxes)).all()


def test_no_boxes():
    assert encode_boxes(tf.zeros([2, 0, 4]), tf.zeros([0, 4])).shape == (2, 0, 4)
    assert decode_boxes(tf.zeros([2, 0, 4]), tf.zeros([0, 4])).shape == (2, 0, 4)
