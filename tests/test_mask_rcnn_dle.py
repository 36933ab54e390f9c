"""Mask R-CNN by the conventions of NVIDIA's TensorFlow 2 program, against its rules worked by hand."""

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf

from efficientdet.families.registry import build_detector, hyperparameters_of
from efficientdet.inference.checkpoint_model import exported_network
from efficientdet.inference.runtimes import copied
from efficientdet.plugins.mask_rcnn.proposal_anchors import centered_levels
from efficientdet.plugins.mask_rcnn.regions import ProposalConfig, region_proposals
from efficientdet.plugins.mask_rcnn.roi_align import RegionPooling, features_of_regions
from efficientdet.plugins.mask_rcnn.sampled_regions import mask_targets
from model.detection_model import losses
from object_detection.geometry.anchor_grid import feature_sizes, grid_of_levels
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.geometry.box_geometry import clip_boxes
from object_detection.structures import Objects

MODEL = "mask-rcnn-resnet18-dle"
SIZE = (64, 96)
IMAGES = np.random.default_rng(0).integers(0, 255, (2, *SIZE, 3)).astype(np.uint8)
SIZES = np.int32([SIZE, (40, 96)])


@pytest.fixture(scope="module")
def detector():
    """With random weights, that finds less than it has slots for."""
    keras.utils.set_random_seed(0)
    built = build_detector(
        hyperparameters_of(
            MODEL,
            {
                "image_size": "96x64",
                "candidates_per_level": 20,
                "proposals": 12,
                "training_candidates_per_level": 50,
                "training_proposals": 40,
                "regions_an_image": 16,
                "anchors_an_image": 32,
                "nms_configs": {"score_thresh": 0.2},
            },
        ),
        num_classes=3,
    )
    for name, factor in (("box_predictor.cls_score", 10), ("box_predictor.bbox_pred", 5)):
        predictor = built.network.get_layer(f"roi_heads.{name}")
        predictor.kernel.assign(factor * np.asarray(predictor.kernel))
    return built


def test_anchors_by_hand():
    grid = grid_of_levels(centered_levels((832, 1344), feature_sizes((832, 1344), 6)[2:]))
    assert len(grid) == 279_279
    np.testing.assert_allclose(grid.boxes[0], [-14, -14, 18, 18])  # 32 pixels around (2, 2)
    np.testing.assert_allclose(
        grid.boxes[1], [2 - 11.2, 2 - 22.4, 2 + 11.2, 2 + 22.4], rtol=1e-6
    )  # 22.4 high, 44.8 wide
    np.testing.assert_allclose(grid.boxes[2], [2 - 22.4, 2 - 11.2, 2 + 22.4, 2 + 11.2], rtol=1e-6)
    np.testing.assert_allclose(grid.boxes[3], [-14, -10, 18, 22])  # a cell to the right
    np.testing.assert_allclose(grid.boxes[-3], [800 - 256, 1312 - 256, 800 + 256, 1312 + 256])


def test_boxes_that_end_with_their_last_pixel():
    """Against the oracle of boxes that are a pixel longer."""
    rng = np.random.default_rng(0)
    boxes, anchors = oracles.random_boxes(rng, (40,)), oracles.random_boxes(rng, (40,))
    longer, coder = np.float32([0, 0, 1, 1]), FasterRcnnBoxCoder(last_pixel=True)
    wanted = [oracles.encode(box, anchor) for box, anchor in zip(boxes + longer, anchors + longer, strict=True)]
    deltas = coder.encode(tf.constant(boxes), tf.constant(anchors))
    np.testing.assert_allclose(deltas, wanted, atol=1e-4, rtol=1e-5)
    np.testing.assert_allclose(coder.decode(deltas, tf.constant(anchors)), boxes, atol=1e-3)
    cut = clip_boxes(tf.constant([[-3.0, 5, 90, 99]]), tf.constant([40, 60]), last_pixel=True)
    np.testing.assert_array_equal(cut, [[0, 5, 39, 59]])


def test_proposals_are_limited_on_each_level_first():
    """Three apart on the first level, of which the two best are taken, and one on the second."""
    anchors = np.float32([[0, 0, 9, 9], [0, 20, 9, 29], [20, 0, 29, 9], [0, 0, 9, 9]])
    boxes, scores, valid = (
        np.asarray(found)[0]
        for found in region_proposals(
            tf.constant([[3.0, 2, 1, 0]]),
            tf.zeros((1, 4, 4)),
            tf.constant(anchors),
            (3, 1),
            tf.constant([[40, 25]]),
            ProposalConfig(kept=4, kept_per_level=2, box_coder=FasterRcnnBoxCoder(last_pixel=True)),
        )
    )
    assert valid.tolist() == [True, True, True, False]
    np.testing.assert_allclose(
        boxes[:3], [[0, 0, 9, 9], [0, 20, 9, 24], [0, 0, 9, 9]]
    )  # to the last pixel, which is 24
    np.testing.assert_allclose(scores[:3], 1 / (1 + np.exp([-3.0, -2, 0])), rtol=1e-6)


def test_one_sample_a_bin_by_hand():
    rng = np.random.default_rng(0)
    level = rng.normal(size=(1, 8, 12, 2)).astype(np.float32)
    boxes = np.float32([[[4, 6, 20.5, 33], [5, 5, 5.5, 6.5], [0, 0, 31, 47]]])
    pooled = np.asarray(
        features_of_regions(
            [tf.constant(level)],
            tf.constant(boxes[0]),
            tf.zeros(3, tf.int32),
            size=3,
            image_size=(32, 48),
            pooling=RegionPooling(samples=1, min_side=0.0, level_slack=0.0),
        )
    )
    for number, i, j in np.ndindex(3, 3, 3):
        top, left, bottom, right = boxes[0, number] / 4
        y, x = min(top + (i + 0.5) * (bottom - top) / 3, 7), min(left + (j + 0.5) * (right - left) / 3, 11)
        wanted = sum(
            max(1 - abs(y - row), 0) * max(1 - abs(x - column), 0) * level[0, row, column]
            for row, column in np.ndindex(8, 12)
        )
        np.testing.assert_allclose(pooled[number, i, j], wanted, atol=1e-5)


def test_masks_are_whole_by_hand():
    """Cells of 2 pixels; the middle of the second bin lies between object and none, and counts as object."""
    masks, box = np.uint8([[[[1, 0, 0, 1]] * 4]]), np.float32([[[0, 0, 8, 8]]])
    found = mask_targets(
        tf.constant(masks),
        tf.constant(box),
        tf.constant([[[0.0, 0, 8, 5]]]),
        tf.constant([[0]]),
        tf.constant([[8, 8]]),
        size=2,
        binary=True,
    )
    # Middles of bins at 1.25 and 3.75 of pixels, which the interpolation sees half a pixel on: cells 0.375 and 1.625
    np.testing.assert_array_equal(np.asarray(found)[0, 0], [[1, 0]] * 2)


def test_an_exported_file_finds_the_same(detector):
    wanted = [np.asarray(values) for values in detector.outputs(IMAGES, SIZES)]
    assert 0 < (wanted[1] > 0).sum() < wanted[1].size
    assert (wanted[0][1, :, 2] <= 39).all()  # the last pixel of its image
    for image, outputs in enumerate(exported_network(detector, runtime="onnxruntime")(IMAGES, SIZES, copied)):
        for ours, theirs in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs[image], atol=2e-3 if ours.shape[-1] == 4 else 1e-4)


def smooth_l1(errors, beta):
    errors = np.abs(errors)
    return np.where(errors < beta, errors**2 / (2 * beta), errors - beta / 2)


def test_the_means_of_the_losses(detector):
    """Every loss from the targets in NumPy; two images, one of them without an object."""
    boxes = np.float32([[[4, 6, 40, 44], [10, 50, 60, 90]], [[0, 0, 0, 0]] * 2])
    valid = np.array([[True, True], [False, False]])
    objects = Objects.of_boxes(boxes, np.int32([[0, 2], [0, 0]]), valid, np.zeros_like(valid))._replace(
        masks=np.ones((2, 2, 112, 112), np.uint8)
    )
    outputs = detector.training_outputs(IMAGES, SIZES, training=True)
    assert [level.shape[1] for level in outputs.levels] == [16, 8, 4, 2, 1]  # P6 too
    targets = detector.targets(objects, outputs, np.int32([[0, 0], [0, 1]]))
    found = {name: float(value) for name, value in losses(detector, outputs, targets, detector.counts(targets)).items()}

    logits, deltas, drawn = np.asarray(outputs.logits), np.asarray(outputs.deltas), np.asarray(targets.positive)
    cross_entropy = np.log1p(np.exp(np.where(drawn, -logits, logits)))
    wanted = {"objectness_loss": cross_entropy[drawn | np.asarray(targets.negative)].sum() / (2 * 32)}
    offsets, positive, first = np.asarray(targets.anchors.box_deltas), np.asarray(targets.anchors.positive), 0
    assert positive.sum() >= 2
    for level, size in enumerate(detector.level_sizes, start=2):
        own = np.s_[:, first : first + size]
        mine = positive[own]
        errors = smooth_l1(deltas[own][mine] - offsets[own][mine], 1 / 9) / 9  # Huber's
        wanted[f"anchor_box_loss_p{level}"] = errors.sum() / max(np.count_nonzero(offsets[own][mine]), 1)
        first += size
    classes = np.asarray(targets.classes)
    class_logits, box_deltas = map(np.asarray, detector.heads.classes_and_deltas(outputs.levels, targets.regions))
    has_object = classes.ravel() > 0
    own_deltas = box_deltas.reshape(-1, 4, 4)[has_object, classes.ravel()[has_object]]
    wanted["box_loss"] = smooth_l1(own_deltas - np.asarray(targets.deltas).reshape(-1, 4)[has_object], 1.0).mean()
    probabilities = np.asarray(keras.ops.softmax(class_logits))[np.arange(classes.size), classes.ravel()]
    wanted["cls_loss"] = -np.log(probabilities)[np.asarray(targets.valid).ravel()].mean()
    assert has_object.sum() >= 2
    assert set(np.unique(np.asarray(targets.masks))) <= {0.0, 1.0}
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name
    assert set(found) == {*wanted, "mask_loss"}
