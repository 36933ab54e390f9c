"""Region proposals against torchvision's, and suppression against a loop."""

import numpy as np
import oracles
import pytest
import tensorflow as tf

from efficientdet.plugins.mask_rcnn.region_layers import nms as fastest_nms
from efficientdet.plugins.mask_rcnn.regions import ProposalConfig, greedy_nms, region_proposals

YX = [1, 0, 3, 2]


def on_device(*boxes, **settings):
    """By what this device and program have."""
    return fastest_nms()(*boxes, **settings)


WAYS = pytest.mark.parametrize("nms", [greedy_nms, on_device])


def suppressed_by_hand(boxes, alive, threshold):
    kept = []
    for number in np.flatnonzero(alive):
        if all(oracles.iou(boxes[number], boxes[better]) <= threshold for better in kept):
            kept.append(number)
    return np.isin(np.arange(len(boxes)), kept)


@WAYS
@pytest.mark.parametrize("compiled", [False, True])
def test_suppression_against_the_loop(nms, compiled):
    rng = np.random.default_rng(0)
    boxes = oracles.random_boxes(rng, (2, 3, 60), side=40.0)
    boxes[..., 2:] += 10
    boxes[0, 0] = np.float32([0, 0, 10, 1])  # a chain of neighbors
    boxes[0, 0, :, 1::2] += 0.25 * np.arange(60, dtype=np.float32)[:, None]
    boxes[1, 0] = 0.0  # nothing overlaps what is empty
    alive = rng.uniform(size=(2, 3, 60)) < 0.9
    alive[1, 1] = False
    kept = tf.function(nms, jit_compile=compiled, autograph=False)(
        tf.constant(boxes), tf.constant(alive), iou_threshold=0.4
    )
    for image, group in np.ndindex(2, 3):
        np.testing.assert_array_equal(
            np.asarray(kept)[image, group], suppressed_by_hand(boxes[image, group], alive[image, group], 0.4)
        )


@pytest.mark.parametrize(
    ("candidates", "kept", "name", "nms"),
    [
        (1000, 1000, "test_1000_1000", greedy_nms),
        (1000, 1000, "test_1000_1000", on_device),
        (2000, 2000, "train_2000_2000", on_device),
        (100, 50, "small_100_50", greedy_nms),
    ],
)
def test_the_published_proposals(golden_folder, nms, candidates, kept, name):
    golden = np.load(golden_folder / "families" / "maskrcnn_rpn_proposals.npz")
    config = ProposalConfig(candidates_per_level=candidates, kept=kept)
    boxes, scores, valid = map(
        np.asarray,
        tf.function(region_proposals, autograph=False)(
            golden["objectness"],
            golden["deltas"][..., YX],
            golden["anchors"][:, YX],
            golden["anchors_per_level"].tolist(),
            golden["image_sizes"],
            config,
            nms=nms,
        ),
    )
    assert valid.all()
    for image in range(2):
        wanted_boxes, wanted_scores = golden[f"{name}_boxes{image}"], golden[f"{name}_scores{image}"]
        np.testing.assert_allclose(scores[image], wanted_scores, atol=1e-5)
        # Free is the order of scores that are nearly equal
        apart = np.abs(wanted_boxes[:, None] - boxes[image][None][..., YX]).max(axis=-1)
        near = np.abs(wanted_scores[:, None] - scores[image][None]) <= 1e-6
        np.testing.assert_array_less(np.where(near, apart, np.inf).min(axis=1), 1e-2)
        np.testing.assert_array_less(np.where(near, apart, np.inf).min(axis=0), 1e-2)


def proposals_of_two_levels(*, kept, **config):
    """Two boxes that overlap on one level, one on the other at the same place, and one outside of the image."""
    anchors = np.float32([[0, 0, 10, 10], [0, 0, 10, 11], [0, 50, 10, 60], [0, 0, 10, 10]])
    logits = np.float32([[1, 3, 9, 2]])
    return [
        np.asarray(found)[0]
        for found in region_proposals(
            tf.constant(logits),
            tf.zeros((1, 4, 4)),
            tf.constant(anchors),
            (3, 1),
            tf.constant([[40, 40]]),
            ProposalConfig(kept=kept, **config),
        )
    ]


def test_by_hand():
    boxes, scores, valid = proposals_of_two_levels(kept=5)
    np.testing.assert_array_equal(valid, [True, True, False, False, False])
    np.testing.assert_array_equal(boxes[:3], [[0, 0, 10, 11], [0, 0, 10, 10], [0, 0, 0, 0]])
    np.testing.assert_allclose(scores[:3], [1 / (1 + np.exp(-3)), 1 / (1 + np.exp(-2)), 0], rtol=1e-6)
    assert proposals_of_two_levels(kept=1)[2].shape == (1,)
    assert proposals_of_two_levels(kept=5, candidates_per_level=1)[2].tolist() == [True, False]  # the best is outside
