import dataclasses

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from miniature import miniature_detector
from oracles import losses_of_batch, to_numpy

from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
from model.detection_model import losses as losses_of_outputs
from model.detection_model import named_variables
from model.fast_layers import IMAGENET_MEAN, IMAGENET_STDDEV
from object_detection.geometry.anchor_grid import AnchorConfig
from object_detection.structures import Batch, Objects, Targets

MEAN, STDDEV = np.float32(IMAGENET_MEAN), np.float32(IMAGENET_STDDEV)


@pytest.fixture(scope="module")
def detector():
    """Shared: no test here changes its weights."""
    return miniature_detector(losses=LossConfig(iou_loss_type="ciou"))


def with_config(detector, **changes):
    """The same network read otherwise."""
    return DenseDetector(detector.network, dataclasses.replace(detector.config, **changes))


def batch_of(rng, *, images=2, valid=True):
    boxes = oracles.random_boxes(rng, (images, 3), side=64.0)
    boxes[..., 2:] += 8
    objects = Objects.of_boxes(
        boxes,
        rng.integers(0, 3, (images, 3)).astype(np.int32),
        np.full((images, 3), valid),
        np.zeros((images, 3), bool),
    )
    return Batch(
        rng.integers(0, 256, (images, 64, 64, 3), dtype=np.uint8),
        np.full((images, 2), 64, np.int32),
        objects,
        np.arange(images),
        np.arange(images),
        np.ones((images, 2), np.float32),
    )


def detection_losses(detector, logits, deltas, *, targets, positives=0.0):
    """Of given outputs, divided as if the batch had so many positives."""
    return losses_of_outputs(detector, (logits, deltas), targets, {"positives": np.float32(positives)})


def random_outputs(rng, *, images=2, spread=1.0):
    return (
        rng.normal(size=(images, 720, 3)).astype(np.float32) * spread,
        rng.normal(size=(images, 720, 4)).astype(np.float32) * 0.3 * spread,
    )


def whole_pyramid_detector(losses):
    """A stand-in whose anchors are those of EfficientDet at 256 x 256 and whose network is not used."""
    images = keras.Input((256, 256, 3))
    maps = [keras.layers.AveragePooling2D(2**level)(images) for level in range(3, 8)]

    def head(values):
        return keras.layers.Concatenate(axis=1)(
            [keras.layers.Reshape((-1, values))(keras.layers.Conv2D(9 * values, 1)(features)) for features in maps]
        )

    return DenseDetector(
        keras.Model(images, [head(7), head(4)]),
        DenseDetectorConfig(image_size=(256, 256), anchors=AnchorConfig(), losses=losses),
    )


def test_the_published_losses(golden_folder):
    golden, outputs = np.load(golden_folder / "losses.npz"), np.load(golden_folder / "nms_inputs.npz")
    objects = Objects.of_boxes(
        np.zeros((2, 9, 4), np.float32), np.zeros((2, 9), np.int32), np.zeros((2, 9), bool), np.zeros((2, 9), bool)
    )
    for image in range(2):
        count = len(golden[f"gt_boxes{image}"])
        objects.boxes[image, :count] = golden[f"gt_boxes{image}"]
        objects.classes[image, :count] = golden[f"gt_classes{image}"] - 1
        objects.valid[image, :count] = True
    for smoothing, name in ((0.0, "class_loss"), (0.1, "class_loss_smoothing_0p1")):
        detector = whole_pyramid_detector(LossConfig(label_smoothing=smoothing))
        targets = detector.targets(objects)
        np.testing.assert_array_equal(to_numpy(targets.positive).sum(axis=1), golden["num_positives"])
        losses = detection_losses(
            detector,
            tf.constant(outputs["class_logits"]),
            tf.constant(outputs["box_outputs"]),
            targets=targets,
            positives=detector.counts(targets)["positives"],
        )
        assert float(losses["cls_loss"]) == pytest.approx(float(golden[name]), rel=1e-5)
        assert float(losses["box_loss"]) / 50 == pytest.approx(float(golden["box_loss"]), rel=1e-5)


def targets_of_one(*, positive=True, ignored=False):
    """Anchor 0 wants class 1 and offsets of exactly zero."""
    one = np.zeros((1, 720), bool)
    one[0, 0] = True
    return Targets(np.int32(one), np.zeros((1, 720, 4), np.float32), one & positive, one & ignored)


def test_an_offset_of_exactly_zero_counts(detector):
    deltas = np.zeros((1, 720, 4), np.float32)
    deltas[0, :2] = 1.0
    losses = detection_losses(
        detector, np.zeros((1, 720, 3), np.float32), deltas, targets=targets_of_one(), positives=0.0
    )
    assert float(losses["box_loss"]) == pytest.approx(50 * 0.095)  # four coordinates of anchor 0, none of anchor 1


@pytest.mark.parametrize("iou_loss_type", ["giou", "ciou"])  # each has the IoU, and ciou has the term of diou
def test_losses_are_finite_in_value_and_gradient(detector, iou_loss_type):
    detector = with_config(detector, losses=LossConfig(iou_loss_type=iou_loss_type))  # compiled once, for both batches
    for valid in (True, False):
        rng = np.random.default_rng(2)
        targets = detector.targets(batch_of(rng, valid=valid).objects)
        logits, deltas = (tf.Variable(array) for array in random_outputs(rng))
        logits.assign(1000.0 * tf.sign(logits))
        deltas.assign(tf.where(tf.range(720)[:, None] % 3 == 0, -1000.0, deltas))  # boxes that have shrunk to nothing
        negative = ~to_numpy(targets.positive)[..., None]
        deltas.assign(tf.where(negative, 1000.0, deltas))  # boundless ones, whose loss is masked
        with tf.GradientTape() as tape:
            losses = detection_losses(detector, logits.value(), deltas.value(), targets=targets, positives=0.0)
            total = sum(losses.values())
        assert np.isfinite(total), valid
        for gradient in tape.gradient(total, [logits, deltas]):
            assert np.isfinite(gradient).all(), valid
    assert float(losses["box_loss"]) == float(losses["box_iou_loss"]) == 0.0  # of no objects


def test_weight_decay_acts_on_trainable_kernels_alone():
    detector = miniature_detector()
    variables = named_variables(detector.network)
    kernels = {name: to_numpy(variable.value) for name, variable in variables.items() if name.endswith("kernel")}
    assert len(kernels) == 4 + 8
    batch = batch_of(np.random.default_rng(0))
    losses = losses_of_batch(detector, batch, training=False)
    assert set(losses) == {"cls_loss", "box_loss", "reg_l2_loss"}
    assert float(losses["reg_l2_loss"]) == pytest.approx(
        2e-5 * sum(np.sum(kernel**2) for kernel in kernels.values()), rel=1e-5
    )
    frozen = "efficientnet-miniature/blocks_0/conv2d/kernel"
    variables[frozen].trainable = False
    losses = losses_of_batch(detector, batch, training=False)
    assert float(losses["reg_l2_loss"]) == pytest.approx(
        2e-5 * sum(np.sum(kernel**2) for name, kernel in kernels.items() if name != frozen), rel=1e-5
    )


def test_nvidias_second_normalization_goes_over_the_padding_too(detector):
    twice = with_config(detector, normalizations=2)
    found = to_numpy(twice.normalize(np.full((1, 64, 64, 3), 255, np.uint8), np.int32([[10, 20]])))
    np.testing.assert_allclose(found[0, 0, 0], ((1 - MEAN) / STDDEV - MEAN) / STDDEV, rtol=1e-5)
    np.testing.assert_allclose(found[0, 63, 63], -MEAN / STDDEV, rtol=1e-5)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_outputs_and_losses_are_float32_under_16_bits(precision):
    detector = miniature_detector(precision=precision)
    batch = batch_of(np.random.default_rng(0))
    assert {output.dtype for output in detector.network.outputs} == {precision.removeprefix("mixed_")}
    assert {output.dtype for output in detector.outputs(batch.images, batch.sizes)} == {tf.float32}
    losses = losses_of_batch(detector, batch)
    assert {loss.dtype for loss in losses.values()} == {tf.float32}
    assert all(np.isfinite(loss) for loss in losses.values())


def test_a_network_with_other_anchors_is_refused(detector):
    with pytest.raises(ValueError, match=r"has outputs for 720 anchors, the grid has 180"):
        with_config(detector, image_size=(32, 32))
