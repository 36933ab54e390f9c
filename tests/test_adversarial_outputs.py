"""Outputs that no trained network has: every implementation of the suppression detects what remains without them."""

import functools

import numpy as np
import oracles
import pytest
import tensorflow as tf
from onnx_sessions import detections_session

from efficientdet.inference.detect import rows_of_image
from object_detection.coco.results import results_json
from object_detection.structures import stacked
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs

COUNT, CLASSES, SLOTS, SIDE = 60, 3, 30, 64
RNG = np.random.default_rng(0)
ANCHORS = oracles.random_boxes(RNG, (COUNT,), side=50.0) + np.float32([0, 0, 4, 4])
LOGITS = np.float32(RNG.permutation(COUNT * CLASSES).reshape(COUNT, CLASSES)) / 40 - 2
BEST, SECOND = np.argsort(-LOGITS.max(axis=1))[:2]
INVALID = {  # deltas of a box without an area in the image
    "NaN center": [np.nan, 0, 0, 0],
    "NaN height": [0, 0, np.nan, 0],
    "all NaN": [np.nan] * 4,
    "infinite center": [np.inf, 0, 0, 0],
    "infinite center and size": [0, -np.inf, 0, np.inf],
    "far outside": [1e30, 0, 0, 0],
    "left of the image": [0, -40, 0, 0],
    "below the image": [40, 0, 0, 0],
    "no height": [0, 0, -200, 0],
    "minus infinite width": [0, 0, 0, -np.inf],
}
METHODS = {
    "gaussian": {},
    "gaussian, all classes": {"per_class": False},
    "hard": {"method": "hard"},
    "hard, all classes": {"method": "hard", "per_class": False},
    "none": {"method": "none"},
    "clipped, softmax": {"method": "hard", "clip": True, "scores": "softmax", "candidates_per_class": 30},
}


def on_backend(config):
    def detect(logits, deltas, sizes):
        return detections_from_outputs(logits, deltas, ANCHORS, config=config, clip_to=sizes, within=sizes)[:3]

    program = tf.function(detect, autograph=False)
    return lambda *arrays: [part.numpy() for part in program(*map(tf.constant, arrays))]


def on_host(config):
    def detect(logits, deltas, sizes):
        outputs = (NetworkOutputs(*image, image[0].max(axis=-1)) for image in zip(logits, deltas, strict=True))
        return stacked(
            [
                detections_on_host(image, ANCHORS, config=config, clip_to=size, within=size)
                for image, size in zip(outputs, sizes, strict=True)
            ]
        )[:3]

    return detect


def in_onnx(config):
    return detections_session(config, anchors=ANCHORS, classes=CLASSES)


RUNTIMES = (on_backend, on_host, in_onnx)


def expected(logits, config, *, removed=()):
    """Boxes, scores and classes of the anchors with these logits, without the anchors `removed`."""
    rows = np.setdiff1d(np.arange(COUNT), removed)
    found = oracles.read_outputs(
        logits[rows], np.zeros((len(rows), 4)), ANCHORS[rows], config=config, clip_to=np.array([SIDE, SIDE])
    )
    boxes, classes, scores = (np.array(column) for column in zip(*found, strict=True))
    return np.clip(boxes, 0, SIDE), scores, classes


def check(detect, deltas, logits, config, *, removed):
    """Compare the detections of an image and of it beside an ordinary one with those without `removed`."""
    ordinary = np.zeros((COUNT, 4), np.float32)
    together = np.stack([logits, LOGITS]), np.stack([deltas, ordinary]), np.full((2, 2), SIDE, np.int32)
    found = detect(*together)
    for image, wanted in enumerate((expected(logits, config, removed=removed), expected(LOGITS, config))):
        count = len(wanted[1])
        assert (found[1][image] > 0).sum() == count
        np.testing.assert_allclose(found[1][image, :count], wanted[1], rtol=1e-4)
        np.testing.assert_array_equal(found[2][image, :count], wanted[2])
        np.testing.assert_allclose(np.clip(found[0][image, :count], 0, SIDE), wanted[0], atol=1e-3)


@functools.cache
def prepared(runtime, method):
    config = SuppressionConfig(candidates=100, max_detections=SLOTS, score_threshold=0.05, **METHODS[method])
    return config, runtime(config)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_box_without_an_area_takes_nothing_from_the_others(runtime, method):
    config, detect = prepared(runtime, method)
    for values in INVALID.values():
        deltas = np.zeros((COUNT, 4), np.float32)
        deltas[[BEST, SECOND]] = values
        check(detect, deltas, LOGITS, config, removed=[BEST, SECOND])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_logits_that_are_no_numbers_take_nothing_from_the_others(runtime, method):
    config, detect = prepared(runtime, method)
    logits = LOGITS.copy()
    logits[[BEST, SECOND]] = np.nan
    check(detect, np.zeros((COUNT, 4), np.float32), logits, config, removed=[BEST, SECOND])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_infinite_boxes_leave_finite_ones(runtime, method):
    _, detect = prepared(runtime, method)
    deltas = np.zeros((COUNT, 4), np.float32)
    deltas[[BEST, SECOND], 2:] = 80, np.inf  # e^80 times the anchor's height, infinite width
    boxes, scores, _ = (part[0] for part in detect(LOGITS[None], deltas[None], np.full((1, 2), SIDE, np.int32)))
    found = np.clip(boxes, 0, SIDE)[scores > 0]
    assert np.isfinite(boxes).all()
    assert (found == [0, 0, SIDE, SIDE]).all(axis=1).any()
    assert len(np.unique(found, axis=0)) > SLOTS // 3


def test_rows_are_boxes_that_result_files_can_store():
    """LiteRT's operator returns boxes without an area."""
    boxes = np.float32([[0, 0, 5, 5], [0, 0, 0, 5], [1, 1, 9, 1.004], [9, 9, 5, 5], [np.nan, 0, 5, 5], [2, 2, 2.02, 3]])
    ids, scores = np.arange(6), np.linspace(0.9, 0.4, 6)
    rows = rows_of_image(boxes, scores, ids, image=np.zeros((9, 9, 3), np.uint8), masks=None, description=None)
    assert rows.category_ids.tolist() == [0, 5]
    assert [result["bbox"] for result in results_json(rows)] == [[0, 0, 5, 5], [2, 2, 1, 0.02]]
