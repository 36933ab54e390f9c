import math

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, PLAIN_BOX_CODER, FasterRcnnBoxCoder

ANCHOR = [0.0, 0.0, 40.0, 20.0]
YX = [1, 0, 3, 2]  # from x, y, x, y or dx, dy, dw, dh, and back


def test_random_boxes_against_the_oracle():
    rng = np.random.default_rng(0)
    boxes, anchors = oracles.random_boxes(rng, (3, 40)), oracles.random_boxes(rng, (40,))
    deltas = to_numpy(PLAIN_BOX_CODER.encode(boxes, anchors))
    wanted = [[oracles.encode(box, anchor) for box, anchor in zip(row, anchors, strict=True)] for row in boxes]
    np.testing.assert_allclose(deltas, wanted, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(PLAIN_BOX_CODER.decode(deltas, anchors), boxes, atol=1e-3)
    drawn = rng.normal(size=(40, 4)).astype(np.float32)
    wanted = [oracles.decode(offsets, anchor) for offsets, anchor in zip(drawn, anchors, strict=True)]
    np.testing.assert_allclose(PLAIN_BOX_CODER.decode(drawn, anchors), wanted, atol=1e-3)


def test_empty_boxes_and_anchors_have_finite_offsets_and_gradients():
    boxes = tf.Variable([[5.0, 5, 5, 5], [5, 5, 5, 9], [9, 9, 5, 5], [0, 0, 10, 10]])
    anchors = tf.constant([[0.0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [5, 5, 5, 5]])
    with tf.GradientTape() as tape:
        deltas = PLAIN_BOX_CODER.encode(boxes.value(), anchors)
        total = tf.reduce_sum(deltas)
    assert np.isfinite(deltas).all()
    assert np.isfinite(tape.gradient(total, boxes)).all()


WEIGHTED = FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0), log_size_limit=LARGEST_LOG_SIZE)


def test_the_limit_holds_of_sizes_above_and_after_the_weights():
    """Height e^(50/5) = 22,000 anchors is cut to 62.5, e^(20/5) = 55 is not; nothing limits small ones or centers."""
    boxes = to_numpy(WEIGHTED.decode(tf.constant([[0.0, 0, 50, 20], [300, 0, -500, 0]]), tf.constant([ANCHOR] * 2)))
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], [[40 * 62.5, 20 * math.exp(4)], [0, 20]], rtol=1e-5)
    np.testing.assert_allclose((boxes[:, 0] + boxes[:, 2]) / 2, [20, 20 + 30 * 40], rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "coder"), [("w1", FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE)), ("w10", WEIGHTED)]
)
def test_torchvisions_box_coder(golden_folder, name, coder):
    golden = np.load(golden_folder / "families" / "box_coder.npz")
    proposals = golden["proposals"][:, YX]
    np.testing.assert_allclose(
        coder.encode(golden["gt_boxes"][:, YX], proposals), golden[f"encoded_{name}"][:, YX], atol=2e-5
    )
    wanted = golden[f"decoded_{name}"][:, YX]
    sides = np.abs(wanted[:, 2:] - wanted[:, :2]).max(axis=1, keepdims=True)
    off = np.abs(to_numpy(coder.decode(golden[f"deltas_{name}"][:, YX], proposals)) - wanted)
    assert (off <= 1e-5 * np.maximum(sides, np.abs(wanted).max(axis=1, keepdims=True))).all()
