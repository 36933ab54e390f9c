import json

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import TESTDATA, to_numpy

from object_detection.gather import entries
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid
from object_detection.suppression.tensor_suppression import (
    SuppressionConfig,
    detections_from_outputs,
    suppress,
    top_candidates,
)

COMBINATIONS = [(method, per_class) for method in ("hard", "gaussian") for per_class in (True, False)]
TWO_AND_ONE = np.float32([[[0, 0, 10, 10], [0, 0, 10, 12], [50, 50, 60, 60]]])  # IoU 10/12, and one far away


def as_graph(function, config):
    """In a graph, because the loop is slow one operation at a time. Arrays to arrays."""
    traced = tf.function(lambda *arrays: function(*arrays, config=config), autograph=False)
    return lambda *arrays: to_numpy(traced(*map(tf.constant, arrays)))


def suppressed(boxes, scores, classes, **config):
    """Of six detections at most."""
    config = SuppressionConfig(**{"max_detections": 6, **config})
    return as_graph(suppress, config)(np.float32(boxes), np.float32(scores), np.int32(classes))


def test_hard_suppression_by_hand():
    found = suppressed(TWO_AND_ONE, [[0.9, 0.8, 0.3]], [[1, 1, 2]], method="hard", max_detections=4)
    np.testing.assert_allclose(found.scores, [[0.9, 0.3, 0, 0]])
    np.testing.assert_array_equal(found.valid, [[True, True, False, False]])
    np.testing.assert_array_equal(found.classes, [[1, 2, 0, 0]])
    np.testing.assert_array_equal(found.boxes[0], [[0, 0, 10, 10], [50, 50, 60, 60], [0, 0, 0, 0], [0, 0, 0, 0]])


def test_gaussian_suppression_by_hand():
    shrunk = 0.8 * np.exp(-((10 / 12) ** 2) / 0.5)  # 0.1995: falls behind the lone box
    found = suppressed(TWO_AND_ONE, [[0.9, 0.8, 0.3]], [[1, 1, 2]], max_detections=3)
    np.testing.assert_allclose(found.scores, [[0.9, 0.3, shrunk]], rtol=1e-6)
    np.testing.assert_array_equal(found.boxes[0], TWO_AND_ONE[0][[0, 2, 1]])
    found = suppressed(TWO_AND_ONE, [[0.9, 0.8, 0.3]], [[1, 1, 2]], max_detections=3, score_threshold=0.2)
    np.testing.assert_array_equal(found.valid, [[True, True, False]])


def test_classes_suppress_each_other_only_where_told():
    of_two_classes = ([[0.9, 0.8, 0.3]], [[1, 2, 2]])
    assert suppressed(TWO_AND_ONE, *of_two_classes, method="hard").valid.sum() == 3
    assert suppressed(TWO_AND_ONE, *of_two_classes, method="hard", per_class=False).valid.sum() == 2


def test_an_overlap_of_exactly_the_threshold_survives():
    boxes = [[[0, 0, 10, 10], [0, 0, 10, 20]]]
    assert suppressed(boxes, [[0.9, 0.8]], [[0, 0]], method="hard", iou_threshold=0.5).valid.sum() == 2
    assert suppressed(boxes, [[0.9, 0.8]], [[0, 0]], method="hard", iou_threshold=0.49).valid.sum() == 1


def crowded(rng, *, images, candidates, classes=3):
    """Overlapping boxes with descending distinct scores."""
    boxes = oracles.random_boxes(rng, (images, candidates), side=40.0)
    boxes[..., 2:] += 10
    scores = -np.sort(-rng.uniform(0, 1, (images, candidates)).astype(np.float32), axis=1)
    return boxes, scores, rng.integers(0, classes, (images, candidates)).astype(np.int32)


@pytest.mark.parametrize(("method", "per_class"), COMBINATIONS)
@pytest.mark.parametrize(("candidates", "slots"), [(60, 20), (25, 40), (1, 3)])
def test_random_boxes_against_the_oracle(method, per_class, candidates, slots):
    boxes, scores, classes = crowded(np.random.default_rng(candidates), images=4, candidates=candidates)
    config = SuppressionConfig(
        method=method,
        per_class=per_class,
        max_detections=slots,
        score_threshold=0.05,
        iou_threshold=0.4,
        sigma=0.3,
    )
    found = as_graph(suppress, config)(boxes, scores, classes)
    for image in range(4):
        wanted = oracles.suppress(boxes[image], scores[image], classes[image], config=config)
        numbers = [number for number, _ in wanted]
        count = len(wanted)
        assert found.valid[image].tolist() == [True] * count + [False] * (slots - count)
        np.testing.assert_array_equal(found.boxes[image, :count], boxes[image][numbers])
        np.testing.assert_array_equal(found.classes[image, :count], classes[image][numbers])
        np.testing.assert_allclose(found.scores[image, :count], [score for _, score in wanted], rtol=1e-5)
        assert not found.boxes[image, count:].any()
        assert not found.scores[image, count:].any()


def test_nothing_above_the_threshold_is_no_detection():
    for method, per_class in COMBINATIONS[1:3]:
        found = suppressed(
            TWO_AND_ONE,
            [[0.05, 0.04, 0.0]],
            [[1, 1, 2]],
            method=method,
            per_class=per_class,
            score_threshold=0.05,
            max_detections=5,
        )
        assert not any(array.any() for array in found)
    assert found.boxes.shape == (1, 5, 4)


@pytest.mark.parametrize(
    ("anchors", "classes", "count"), [(40, 5, 17), (40, 5, 200), (40, 5, 1), (7, 3, 5), (30, 1, 30)]
)
def test_candidates_are_the_flattened_top_k_also_among_ties(anchors, classes, count):
    rng = np.random.default_rng(anchors + count)
    logits = rng.integers(-2, 3, (6, anchors, classes)).astype(np.float32)  # five values: nearly all are ties
    logits[0] = 0.0
    found = to_numpy(top_candidates(tf.constant(logits), config=SuppressionConfig(candidates=count)))
    for image in range(6):
        for one, wanted in zip(found, oracles.top_candidates(logits[image], count), strict=True):
            np.testing.assert_allclose(one[image], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "case",
    [
        "per_class_hard",
        "per_class_gaussian",
        "global_hard",
        "global_gaussian",
        "sparse_per_class_hard",
        "sparse_per_class_gaussian_iou0.5",
        "sparse_global_hard",
        "sparse_global_gaussian_iou0.5",
    ],
)
def test_the_published_suppression(case):
    golden = np.load(TESTDATA / f"nms_{case}.npz")
    outputs = np.load(TESTDATA / ("nms_sparse_candidates.npz" if "sparse" in case else "nms_candidates.npz"))
    found, clips = _published(case, golden, outputs)
    boxes = np.clip(found.boxes, 0, 256) if clips else found.boxes
    boxes = boxes * outputs["image_scales"][:, None, None]
    np.testing.assert_array_equal(found.valid.sum(axis=1), golden["valid"])
    for image, count in enumerate(golden["valid"]):
        np.testing.assert_allclose(boxes[image, :count], golden["boxes"][image, :count], atol=1e-2)
        np.testing.assert_allclose(found.scores[image, :count], golden["scores"][image, :count], atol=1e-5)
        np.testing.assert_array_equal(found.classes[image, :count] + 1, golden["classes"][image, :count])


def _published(case, golden, outputs):
    params = json.loads(str(golden["params"]))
    config = SuppressionConfig(
        method=params["method"],
        per_class="per_class" in case,
        iou_threshold=params["iou_thresh"],
        score_threshold=params["score_thresh"],
        sigma=params["sigma"],
        candidates=params["max_nms_inputs"],
        max_detections=params["max_output_size"],
    )
    anchors = anchor_grid(AnchorConfig(), (256, 256)).boxes
    return as_graph(detections_from_outputs, config)(
        outputs["class_logits"], outputs["box_outputs"], anchors
    ), not config.per_class


def test_nvidias_detections(golden_folder):
    golden = np.load(golden_folder / "nvidia_forward_efficientdet-d0.npz")
    anchors = anchor_grid(AnchorConfig(aspect_ratios=((1, 1), (1.4, 0.7), (0.7, 1.4))), (256, 256)).boxes
    config, last_pixel = SuppressionConfig(), np.float32([0, 0, 1, 1])  # its overlaps count a pixel more per side

    def detect(logits, deltas):
        scores, classes, numbers = top_candidates(logits, config=config)
        boxes = config.box_coder.decode(entries(deltas, numbers), keras.ops.take(anchors, numbers, axis=0))
        return suppress(boxes + last_pixel, scores, classes, config=config)

    found = to_numpy(
        tf.function(detect)(*(tf.constant(golden[f"det_{name}"]) for name in ("class_logits", "box_outputs")))
    )
    boxes = (found.boxes - last_pixel) * golden["image_scales"][:, None, None]
    assert golden["detections"].shape == (2, 100, 7)
    assert found.valid.all()
    np.testing.assert_array_equal(np.broadcast_to(golden["image_ids"][:, None], (2, 100)), golden["detections"][..., 0])
    np.testing.assert_allclose(boxes[..., [1, 0]], golden["detections"][..., 1:3], atol=1e-2)
    np.testing.assert_allclose(boxes[..., [3, 2]] - boxes[..., [1, 0]], golden["detections"][..., 3:5], atol=1e-2)
    np.testing.assert_allclose(found.scores, golden["detections"][..., 5], atol=1e-5)
    np.testing.assert_array_equal(found.classes + 1, golden["detections"][..., 6])
