"""What a `DenseDetector` may be configured to, each choice against plain NumPy on a pyramid of odd levels."""

import math

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from efficientdet.families.efficientdet.build import detector_config
from efficientdet.families.registry import hyperparameters_of
from efficientdet.inference.runtimes import Network, copied
from efficientdet.plugins.mask_rcnn.regions import ProposalConfig
from efficientdet.plugins.onnx.model import onnx_model
from efficientdet.plugins.ssd.default_boxes import ssd300_levels
from model.bifpn import BifpnConfig
from model.dense_detector import DenseDetector, DenseDetectorConfig, LossConfig
from model.detection_model import losses
from object_detection.assignment.anchor_assignment import IouAssigner
from object_detection.geometry.anchor_grid import AnchorLevel
from object_detection.geometry.box_coding import FasterRcnnBoxCoder
from object_detection.structures import Objects, Targets
from object_detection.suppression.tensor_suppression import SuppressionConfig
from program_support.errors import InputError

LEVELS = (  # 4 and 6 anchors a cell
    AnchorLevel(counts=(7, 6), strides=(8, 8), offset=(3.5, 3.5), shapes=((16, 16), (12, 24), (24, 12), (20, 20))),
    AnchorLevel(
        counts=(3, 2),
        strides=(16, 16),
        offset=(11, 11),
        shapes=((32, 32), (24, 48), (48, 24), (40, 40), (28, 28), (60, 30)),
    ),
)
CODER = FasterRcnnBoxCoder(weights=(10.0, 8.0, 5.0, 4.0), log_size_limit=2.0)
PLAIN = FasterRcnnBoxCoder()
YX = [1, 0, 3, 2]  # from x, y, w, h or dx, dy, dw, dh, and back


def network(logits):
    """Features of 7 x 6 and 3 x 2 cells by valid padding, as the two tensors that a dense detector wants."""
    keras.utils.set_random_seed(0)
    images = keras.Input((64, 56, 3))
    fine = keras.layers.Conv2D(6, 9, strides=8, activation="relu", padding="valid")(images)
    features = [fine, keras.layers.Conv2D(6, 3, strides=2, activation="relu", padding="valid")(fine)]

    def head(values):
        return keras.layers.Concatenate(axis=1)(
            [
                keras.layers.Reshape((-1, values))(keras.layers.Conv2D(count * values, 1)(level))
                for count, level in zip((4, 6), features, strict=True)
            ]
        )

    return keras.Model(images, [head(logits), head(4)])


def detector_of(*, scores="sigmoid", box_coder=PLAIN, suppression=None, **others):
    """With 3 classes and, if it reads a softmax, the background."""
    reading = SuppressionConfig(scores=scores, box_coder=box_coder, score_threshold=0.01, **(suppression or {}))
    return DenseDetector(
        network(3 if scores == "sigmoid" else 4),
        DenseDetectorConfig(image_size=(64, 56), anchors=LEVELS, suppression=reading, **others),
    )


def objects_of(images=3):
    """The last image has none."""
    random = np.random.default_rng(0)
    boxes = oracles.random_boxes(random, (images, 4), side=50.0)
    boxes[..., 2:] += 6
    valid = np.ones((images, 4), bool)
    valid[-1] = False
    return Objects.of_boxes(
        boxes, random.integers(0, 3, (images, 4)).astype(np.int32), valid, np.zeros((images, 4), bool)
    )


def outputs_of(detector, images=3):
    random, (_, anchors, logits) = np.random.default_rng(1), detector.network.output_shape[0]
    return (
        random.normal(size=(images, anchors, logits)).astype(np.float32),
        random.normal(size=(images, anchors, 4)).astype(np.float32) * 0.5,
    )


def anchor_boxes():
    """By their definition, anchor for anchor."""
    return np.array(
        [
            (
                level.offset[0] + row * level.strides[0] - height / 2,
                level.offset[1] + column * level.strides[1] - width / 2,
                level.offset[0] + row * level.strides[0] + height / 2,
                level.offset[1] + column * level.strides[1] + width / 2,
            )
            for level in LEVELS
            for row in range(level.counts[0])
            for column in range(level.counts[1])
            for height, width in level.shapes
        ],
        np.float32,
    )


def matches_of(objects, rule):
    """For each image the object of each anchor, -1 for none, and which anchors are between."""
    return [
        oracles.match(
            boxes[valid],
            anchor_boxes(),
            positive_iou=rule.positive_iou,
            negative_iou=rule.negative_iou,
            claim=rule.claim,
            strictly=rule.strictly,
        )
        for boxes, valid in zip(objects.boxes, objects.valid, strict=True)
    ]


def class_loss(logits, kind, name):
    """Of one anchor; `kind` is its class or -1."""
    if name == "focal":
        return sum(
            oracles.focal_loss(float(logit), number == kind, alpha=0.25, gamma=1.5)
            for number, logit in enumerate(logits)
        )
    powers = [math.exp(logit) for logit in logits]
    return -math.log(powers[kind + 1] / sum(powers))


BOX_LOSSES = {
    "huber": lambda error: oracles.huber_loss(error, delta=0.1),
    "smooth l1": lambda error: oracles.huber_loss(error, delta=0.1) / 0.1,
    "l1": abs,
}


def wanted_losses(outputs, objects, config):
    """By image, then all together."""
    rule, losses, coder = config.assigner, config.losses, config.suppression.box_coder
    sums, positives = [], []
    for image, (matched, between) in enumerate(matches_of(objects, rule)):
        logits, deltas = (values[image] for values in outputs)
        of_image = dict.fromkeys(("cls_loss", "box_loss", "box_iou_loss"), 0.0)
        of_others = []  # losses of anchors without an object
        for anchor, number in enumerate(matched):
            kind = objects.classes[image, number] if number >= 0 else -1
            if not between[anchor]:
                loss = class_loss(logits[anchor], kind, losses.class_loss)
                of_image["cls_loss"] += loss if number >= 0 else 0
                of_others += [loss] if number < 0 else []
            if number >= 0:
                box, place = objects.boxes[image, number], anchor_boxes()[anchor]
                offsets = np.array(oracles.encode(box, place)) * coder.weights
                of_image["box_loss"] += sum(map(BOX_LOSSES[losses.box_loss], deltas[anchor] - offsets))
                found = oracles.decode(
                    np.minimum(
                        deltas[anchor] / coder.weights,
                        [np.inf, np.inf, *[math.inf if coder.log_size_limit is None else coder.log_size_limit] * 2],
                    ),
                    place,
                )
                of_image["box_iou_loss"] += 1 - oracles.generalized_iou(found, box, "giou")
        most = None if losses.hard_negative_ratio is None else int(losses.hard_negative_ratio * (matched >= 0).sum())
        of_image["cls_loss"] += sum(sorted(of_others, reverse=True)[:most])
        sums.append(of_image)
        positives.append((matched >= 0).sum())
    weights = {
        "cls_loss": losses.class_loss_weight,
        "box_loss": losses.box_loss_weight,
        "box_iou_loss": losses.iou_loss_weight,
    }
    if losses.normalizer == "positives of each image":
        return {
            name: weights[name]
            * np.mean([of_image[name] / max(1, count) for of_image, count in zip(sums, positives, strict=True)])
            for name in weights
        }
    divisor = {"cls_loss": 1, "box_loss": 4, "box_iou_loss": 4}
    return {
        name: weights[name] * sum(of_image[name] for of_image in sums) / (divisor[name] * (sum(positives) + 1))
        for name in weights
    }


OPTIONS = {
    "EfficientDet's": {},
    "RetinaNet's": {
        "losses": {
            "box_loss": "l1",
            "box_loss_weight": 3.0,
            "class_loss_weight": 2.0,
            "normalizer": "positives of each image",
        },
        "assigner": IouAssigner(positive_iou=0.45, negative_iou=0.3, claim="ties"),
        "box_coder": CODER,
    },
    "SSD's": {
        "losses": {
            "hard_negative_ratio": 3.0,
            "normalizer": "positives of each image",
            "box_loss": "smooth l1",
            "class_loss": "softmax cross entropy",
        },
        "scores": "softmax",
        "assigner": IouAssigner(strictly=True, claim="best, last"),
    },
    "hard negatives": {"losses": {"hard_negative_ratio": 1.5}, "assigner": IouAssigner(negative_iou=0.3)},
}


def built(options):
    given = {"iou_loss_type": "giou", **options.get("losses", {})}
    return detector_of(**{**options, "losses": LossConfig(**given)})


@pytest.mark.parametrize("name", OPTIONS)
def test_losses_are_those_of_the_oracle_and_two_parts_make_a_whole(name):
    """Sums and counts add up, whatever divides them: what lets ranks and parts of a batch equal one whole."""
    detector, objects = built(OPTIONS[name]), objects_of()
    outputs, targets = outputs_of(detector), to_numpy(detector.targets(objects))
    counts = detector.counts(targets)
    assert (
        float(counts["positives"])
        == sum((matched >= 0).sum() for matched, _ in matches_of(objects, detector.config.assigner))
        > 5
    )
    whole = losses(detector, outputs, targets, counts)
    wanted = wanted_losses(outputs, objects, detector.config)
    assert {name: float(value) for name, value in whole.items()} == pytest.approx(wanted, rel=2e-4)
    sums, counts = {}, {}
    for part in (slice(0, 1), slice(1, 3)):
        of_part = type(targets)(*(values[part] for values in targets))
        for total, values in (
            (counts, detector.counts(of_part)),
            (sums, detector.loss_sums(tuple(values[part] for values in outputs), of_part)),
        ):
            total.update({key: total.get(key, 0.0) + float(value) for key, value in values.items()})
    divisors = detector.normalizers({key: np.float32(value) for key, value in counts.items()})
    assert {key: value / float(divisors[key]) for key, value in sums.items()} == pytest.approx(
        {key: float(value) for key, value in whole.items()}, rel=1e-5
    )


def test_mean_and_deviation_are_those_given():
    detector = detector_of(mean=(0.1, 0.2, 0.3), stddev=(0.5, 1.0, 2.0))
    images, sizes = np.full((1, 64, 56, 3), 51, np.uint8), np.int32([[60, 30]])
    found = to_numpy(detector.normalize(images, sizes))
    np.testing.assert_allclose(found[0, 59, 29], [0.2, 0.0, -0.05], atol=1e-6)
    assert not found[0, 60:].any()
    assert not found[0, :, 30:].any()
    [written] = Network(onnx_model(detector).SerializeToString(), runtime="onnxruntime")(images, sizes, copied)
    np.testing.assert_allclose(written[0], to_numpy(detector.outputs(images, sizes))[0][0], rtol=1e-3, atol=1e-4)


def test_the_published_loss_of_ssd(golden_folder):
    """And its slope, which is 0 at anchors that do not count; one of the images has no positive anchor."""
    golden = np.load(golden_folder / "families" / "ssd_loss.npz")
    defaults, objects = (
        corners(boxes)
        for boxes in (
            np.load(golden_folder / "families" / "ssd_default_boxes.npz")["xywh"],
            golden["gloc"].transpose(0, 2, 1),
        )
    )
    detector = ssd_detector(classes=golden["plabel"].shape[1])
    coder, positive = detector.config.suppression.box_coder, golden["glabel"] > 0
    targets = Targets(
        np.maximum(golden["glabel"] - 1, 0),
        np.where(positive[..., None], coder.encode(objects, defaults), 0),
        positive,
        np.zeros_like(positive),
    )
    outputs = golden["plabel"].transpose(0, 2, 1), golden["ploc"].transpose(0, 2, 1)[..., YX]

    def loss_of(outputs, images):
        of_images = Targets(*(values[images] for values in targets))
        return sum(losses(detector, outputs, of_images, detector.counts(of_images)).values())

    for image, wanted in enumerate(golden["loss_per_image"]):
        found = loss_of([values[image : image + 1] for values in outputs], slice(image, image + 1))
        assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert float(loss_of(outputs, slice(None))) == pytest.approx(float(golden["loss"]), rel=1e-5)
    logits, deltas = (tf.constant(values[:1]) for values in outputs)
    with tf.GradientTape() as tape:
        tape.watch((logits, deltas))
        loss = loss_of((logits, deltas), slice(1))
    of_logits, of_deltas = tape.gradient(loss, (logits, deltas))
    np.testing.assert_allclose(of_deltas[0].numpy()[:, YX].T, golden["grad_ploc_image0"], atol=1e-6)
    np.testing.assert_array_equal(of_logits[0].numpy().any(axis=-1), golden["chosen_image0"])


def ssd_detector(*, classes):
    """Its losses alone, of outputs that are its inputs."""
    anchors = 8732
    inputs = keras.Input((anchors, classes)), keras.Input((anchors, 4))
    return DenseDetector(
        keras.Model(inputs, list(inputs)),
        DenseDetectorConfig(
            image_size=(300, 300),
            anchors=ssd300_levels(),
            losses=LossConfig(
                class_loss="softmax cross entropy",
                normalizer="positives of each image",
                hard_negative_ratio=3.0,
                box_loss="smooth l1",
                delta=1.0,
                box_loss_weight=1.0,
            ),
            suppression=SuppressionConfig(
                scores="softmax", box_coder=FasterRcnnBoxCoder(weights=(10.0, 10.0, 5.0, 5.0))
            ),
        ),
    )


def corners(xywh):
    """Center and size x, y, w, h to float32 yxyx."""
    centers, half = xywh[..., 1::-1], xywh[..., :1:-1] / 2
    return np.concatenate([centers - half, centers + half], axis=-1)


def test_the_weight_of_the_box_loss_follows_its_kind_unless_it_is_given():
    for overrides, expected in (
        ({}, ("huber", 50.0)),
        ({"box_loss_type": "giou"}, ("giou", 2.0)),
        ({"box_loss_weight": 0.0}, ("huber", 0.0)),
    ):
        config = detector_config(hyperparameters_of("efficientdet-d0", overrides)).losses
        assert (config.box_loss, config.box_loss_weight) == expected


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (LossConfig, {"hard_negative_ratio": 0.0}, "a finite number above 0"),
        (LossConfig, {"box_loss": "l2"}, "one of huber, smooth l1, l1"),
        (LossConfig, {"normalizer": "images"}, "one of positives of the batch"),
        (SuppressionConfig, {"method": "linear"}, "one of hard"),
        (SuppressionConfig, {"scores": "tanh"}, "one of sigmoid"),
        (SuppressionConfig, {"candidates": 0}, "at least 1"),
        (IouAssigner, {"claim": "none"}, "one of best"),
        (IouAssigner, {"positive_iou": 0.0}, ""),
        (BifpnConfig, {"filters": 8, "cells": 1, "pyramid": "pan"}, "one of bifpn"),
        (ProposalConfig, {"iou_threshold": 0.0}, ""),
    ],
)
def test_values_that_cannot_be_are_refused(config, options, expected):
    key, value = list(options.items())[-1]
    with pytest.raises(InputError, match=f"{config.__name__}.{key} is {value}; expected {expected}"):
        config(**options)
