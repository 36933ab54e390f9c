"""Suppression by several boxes per iteration in the best candidates first, against one box of all at a time."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
from onnx_sessions import detections_session

from efficientdet.plugins.onnx import suppression as onnx_suppression
from object_detection.suppression import tensor_suppression
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs

ANCHORS, CLASSES, SLOTS = 60, 3, 10
RNG = np.random.default_rng(0)
SCATTERED = oracles.random_boxes(RNG, (ANCHORS,), side=60.0) + np.float32(1)
APART = np.float32([[8 * row, 8 * column, 8 * row + 6, 8 * column + 6] for row in range(8) for column in range(8)])
CHAIN = np.float32([[5, 0.9 * number, 15, 0.9 * number + 3] for number in range(ANCHORS)])
DISTINCT = np.float32(RNG.permutation(ANCHORS * CLASSES).reshape(ANCHORS, CLASSES)) / 40 - 2
EQUAL = np.zeros((ANCHORS, CLASSES), np.float32)
CASES = {
    "scattered": (SCATTERED, DISTINCT),
    "all boxes equal": (np.tile(np.float32([[5, 5, 30, 40]]), (ANCHORS, 1)), DISTINCT),
    "all scores equal": (SCATTERED, EQUAL),
    "a chain": (CHAIN, np.sort(DISTINCT, axis=0)),
    "apart, all scores equal": (APART[:ANCHORS], EQUAL),
    "boxes and scores equal": (np.tile(np.float32([[5, 5, 30, 40]]), (ANCHORS, 1)), EQUAL),
    "fewer than slots": (SCATTERED, np.where(DISTINCT.max() - 0.12 < DISTINCT, 0.5, np.float32(-20))),
    "nothing": (SCATTERED, EQUAL - 20),
    "the best in one cluster": (  # the candidates of the first attempt suppress each other
        np.concatenate([APART[:1] + 0.01 * np.arange(40, dtype=np.float32)[:, None], APART[1:21]]),
        np.concatenate([DISTINCT[:40] + 4, DISTINCT[40:] - 1]),
    ),
}
PIXELS = np.tile(np.float32([[0, 0, 1, 1]]), (ANCHORS, 1))  # the anchors


def in_onnx(config):
    """Boxes, scores and classes by ONNX Runtime, from logits and deltas."""
    session = detections_session(config, anchors=PIXELS, classes=CLASSES)
    return lambda logits, deltas: session(logits, deltas, np.full((len(logits), 2), 64, np.int32))


def in_keras(config):
    """Boxes, scores and classes by TensorFlow, from logits and deltas."""

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, ANCHORS, last]) for last in (CLASSES, 4)])
    def traced(logits, deltas):
        return detections_from_outputs(logits, deltas, PIXELS, config=config)[:3]

    return lambda logits, deltas: [part.numpy() for part in traced(logits, deltas)]


@pytest.mark.parametrize(("first", "examined"), [((2048,), 16), ((20,), 4), ((7,), 16), ((7, 20), 3)])
@pytest.mark.parametrize(
    ("made", "options"),
    [
        (in_onnx, {}),
        (in_onnx, {"per_class": False}),
        (in_keras, {}),
        (in_keras, {"per_class": False}),
        (in_keras, {"method": "hard"}),
    ],
)
def test_detections_are_those_of_one_selection_at_a_time(monkeypatch, made, options, first, examined):
    monkeypatch.setattr(onnx_suppression, "FIRST_CANDIDATES", first)
    monkeypatch.setattr(tensor_suppression, "FIRST_CANDIDATES", first[0])
    monkeypatch.setattr(onnx_suppression, "EXAMINED", examined)
    monkeypatch.setattr(tensor_suppression, "_EXAMINED", examined)
    config = SuppressionConfig(candidates=100, max_detections=SLOTS, **options)
    detect = made(config)
    boxes, logits = (np.stack(parts) for parts in zip(*CASES.values(), strict=True))
    centers, sides = (boxes[..., 2:] + boxes[..., :2]) / 2, boxes[..., 2:] - boxes[..., :2]
    deltas = np.concatenate([centers - 0.5, np.log(sides)], axis=-1)
    together = detect(logits, deltas)
    for number, name in enumerate(CASES):
        one = slice(number, number + 1)
        for alone, of_all in zip(detect(logits[one], deltas[one]), together, strict=True):
            np.testing.assert_allclose(alone[0], of_all[number], rtol=1e-6, err_msg=name)
        order = _order(logits[number]) if made is in_onnx else np.arange(ANCHORS)
        scores, classes, anchors = oracles.top_candidates(logits[number][order], 100)
        candidates = boxes[number][order[anchors]]
        expected = oracles.suppress(candidates, scores, classes, config=config)
        count, places = len(expected), [place for place, _ in expected]
        found_boxes, found_scores, found_classes = (part[number] for part in together)
        np.testing.assert_allclose(found_scores[:count], [score for _, score in expected], rtol=1e-5, err_msg=name)
        np.testing.assert_array_equal(found_classes[:count], classes[places], err_msg=name)
        np.testing.assert_allclose(found_boxes[:count], candidates[places], atol=1e-3, err_msg=name)
        assert not found_scores[count:].any(), name


def _order(logits):
    """Numbers of the anchors by their best class, in which the file orders equal scores."""
    return np.argsort(-logits.max(axis=-1), kind="stable")
