"""Outputs read as RetinaNet, SSD300 and others have them: on the device and on the host what a slow reader finds."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from efficientdet.plugins.ssd.default_boxes import ssd300_levels
from object_detection.geometry.anchor_grid import RETINANET_SIZES, feature_sizes, grid_of_levels, rounded_levels
from object_detection.geometry.box_coding import LARGEST_LOG_SIZE, FasterRcnnBoxCoder
from object_detection.structures import stacked
from object_detection.suppression.host_suppression import NetworkOutputs, detections_on_host
from object_detection.suppression.tensor_suppression import SuppressionConfig, detections_from_outputs

YX = [1, 0, 3, 2]  # from x, y, x, y or dx, dy, dw, dh, and back
TORCHVISION = {
    "method": "hard",
    "candidates_per_level": 1000,
    "score_threshold": 0.05,
    "max_detections": 300,
    "box_coder": FasterRcnnBoxCoder(log_size_limit=LARGEST_LOG_SIZE),
}
SSD = {
    "method": "hard",
    "candidates_per_class": 200,
    "scores": "softmax",
    "score_threshold": 0.05,
    "iou_threshold": float(np.nextafter(np.float32(0.5), np.float32(0))),
    "max_detections": 200,
    "box_coder": FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0)),
}


def on_device(logits, deltas, anchors, config, **others):
    program = tf.function(lambda *arrays: detections_from_outputs(*arrays, config=config, **others), autograph=False)
    return to_numpy(program(*map(tf.constant, (logits, deltas, anchors))))


def on_host(logits, deltas, anchors, config, *, clip_to=None, **others):
    sizes = [None] * len(logits) if clip_to is None else clip_to
    return stacked(
        [
            detections_on_host(
                NetworkOutputs(image, box_deltas, image.max(axis=-1)), anchors, config=config, clip_to=size, **others
            )
            for image, box_deltas, size in zip(logits, deltas, sizes, strict=True)
        ]
    )


READERS = (on_device, on_host)
LEVEL_SIZES = (150, 60, 7, 1)


def drawn_outputs(*, classes, seed=0):
    rng = np.random.default_rng(seed)
    count = sum(LEVEL_SIZES)
    anchors = oracles.random_boxes(rng, (count,), side=80.0)
    anchors[:, 2:] += 10
    return (
        rng.normal(-1, 2, (2, count, classes)).astype(np.float32),
        rng.normal(0, 0.4, (2, count, 4)).astype(np.float32),
        anchors,
    )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "options",
    [
        {"scores": "softmax"},
        {"scores": "softmax", "method": "none"},
        {"candidates_per_level": 20, "method": "hard"},
        {"candidates_per_level": 9, "candidates": 15},
        {"candidates_per_level": 1000},
        {"candidates_per_class": 12, "scores": "softmax"},
        {"candidates_per_class": 1000, "per_class": False, "method": "hard"},
        {"candidates_per_class": 30, "candidates": 25},
        {"candidates_per_level": 20, "scores": "softmax", "candidates": 40},
        {"box_coder": FasterRcnnBoxCoder(weights=(10.0, 5.0, 2.0, 4.0), log_size_limit=0.05)},
    ],
)
def test_what_the_slow_reader_finds(options, reader):
    logits, deltas, anchors = drawn_outputs(classes=5)
    config = SuppressionConfig(**{"max_detections": 25, "score_threshold": 0.02, **options})
    found = reader(logits, deltas, anchors, config, level_sizes=LEVEL_SIZES)
    check(found, logits, deltas, anchors, config)


def check(found, logits, deltas, anchors, config, *, clip_to=None):
    for image in range(len(logits)):
        wanted = oracles.read_outputs(
            logits[image],
            deltas[image],
            anchors,
            config=config,
            level_sizes=LEVEL_SIZES,
            clip_to=None if clip_to is None else clip_to[image],
        )
        assert found.valid[image].sum() == len(wanted) > 5
        boxes, kinds, scores = zip(*wanted, strict=True)
        np.testing.assert_array_equal(found.classes[image, : len(wanted)], kinds)
        np.testing.assert_allclose(found.scores[image, : len(wanted)], scores, rtol=1e-4)
        np.testing.assert_allclose(found.boxes[image, : len(wanted)], boxes, atol=1e-3)


@pytest.mark.parametrize("reader", READERS)
def test_boxes_are_cut_before_they_are_compared(reader):
    logits, deltas, anchors = drawn_outputs(classes=1)
    sizes = np.int32([[40, 60], [70, 20]])
    config = SuppressionConfig(max_detections=25, method="hard", score_threshold=0.02, clip=True)
    check(reader(logits, deltas, anchors, config, clip_to=sizes), logits, deltas, anchors, config, clip_to=sizes)
    shifted = np.float32(
        [[0, -30, 10, 10], [0, -30, 10, 10], [0, 0, 10, 11]]
    )  # IoU 1/4 with the last as they are, 10/11 cut
    found = reader(
        np.float32([[[3], [-9], [2]]]), np.zeros((1, 3, 4), np.float32), shifted, config, clip_to=np.int32([[50, 50]])
    )
    assert found.valid.sum() == 1
    np.testing.assert_array_equal(found.boxes[0, 0], [0, 0, 10, 10])


@pytest.mark.parametrize("reader", READERS)
def test_logits_of_any_size_have_scores(reader):
    logits = np.float32([[[1e30, 0, -1e30], [-1e30, -1e30, -1e30], [1e4, 1e4, 2e4]]])
    anchors = np.float32([[0, 0, 10, 10], [30, 30, 40, 40], [60, 60, 70, 70]])
    found = reader(
        logits, np.zeros((1, 3, 4), np.float32), anchors, SuppressionConfig(scores="softmax", max_detections=4)
    )
    np.testing.assert_allclose(found.scores[0], [1, 1 / 3, 1 / 3, 0], rtol=1e-5)


@pytest.mark.parametrize("reader", READERS)
def test_of_equal_scores_the_lower_level_and_anchor_come_first(reader):
    anchors = np.float32([[10 * i, 0, 10 * i + 8, 8] for i in range(6)])
    config = SuppressionConfig(candidates_per_level=2, candidates=3, max_detections=6)
    found = reader(
        np.zeros((1, 6, 1), np.float32), np.zeros((1, 6, 4), np.float32), anchors, config, level_sizes=(3, 3)
    )
    np.testing.assert_array_equal(found.boxes[0, :3, 0], [0, 10, 30])
    assert found.valid.sum() == 3


@pytest.mark.parametrize("reader", READERS)
def test_retinanets_published_detections(golden_folder, reader):
    golden = np.load(golden_folder / "families" / "retinanet_postprocess.npz")
    grid = grid_of_levels(rounded_levels((256, 320), feature_sizes((256, 320), 7)[3:], sizes=RETINANET_SIZES))
    config = SuppressionConfig(**TORCHVISION, clip=True)
    found = reader(
        golden["cls_logits"],
        golden["bbox_regression"][..., YX],
        grid.boxes,
        config,
        level_sizes=grid.level_sizes,
        clip_to=np.tile(golden["image_size"], (3, 1)),
    )
    for image in range(3):
        count = len(golden[f"boxes{image}"])
        assert found.valid[image].sum() == count
        np.testing.assert_array_equal(found.classes[image, :count], golden[f"labels{image}"])
        np.testing.assert_allclose(found.scores[image, :count], golden[f"scores{image}"], atol=1e-5)
        np.testing.assert_allclose(found.boxes[image, :count][:, YX], golden[f"boxes{image}"], atol=1e-2)


@pytest.mark.parametrize("reader", READERS)
def test_ssds_published_detections(golden_folder, reader):
    golden, grid = np.load(golden_folder / "families" / "ssd_decode.npz"), grid_of_levels(ssd300_levels())
    found = reader(
        golden["plabel"].transpose(0, 2, 1),
        golden["ploc"].transpose(0, 2, 1)[..., YX],
        grid.boxes,
        SuppressionConfig(**SSD),
    )
    for image in range(2):
        count = len(golden[f"boxes{image}"])
        assert found.valid[image].sum() == count
        backwards = slice(None, None, -1)  # the reference has the best last
        np.testing.assert_array_equal(found.classes[image, :count] + 1, golden[f"labels{image}"][backwards])
        np.testing.assert_allclose(found.scores[image, :count], golden[f"scores{image}"][backwards], atol=1e-5)
        np.testing.assert_allclose(
            found.boxes[image, :count][:, YX] / 300, golden[f"boxes{image}"][backwards], atol=1e-5
        )


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("options", "level_sizes", "classes", "message"),
    [
        ({"candidates_per_level": 5}, None, 3, "expected sizes with this sum"),
        ({"candidates_per_level": 5}, (200, 19), 3, "218 anchors with level_sizes"),
        ({"scores": "softmax"}, None, 1, "besides the background"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(reader, options, level_sizes, classes, message):
    outputs = drawn_outputs(classes=classes)
    with pytest.raises(ValueError, match=message):
        reader(*outputs, SuppressionConfig(**options), level_sizes=level_sizes)
