"""Counts of arithmetic, beside counts by hand and published ones."""

import keras
import pytest
from keras import layers
from unfilled import unfilled_weights

from efficientdet.families.registry import build_detector, hyperparameters_of
from model.multiply_adds import multiply_adds, training_multiply_adds
from model.resnet import GroupedConv2D, build_resnet


def test_by_hand():
    shared = layers.SeparableConv2D(4, 3, padding="same")
    images = keras.Input((8, 8, 3))
    large = layers.Conv2D(4, 3, strides=2, padding="same")(images)  # 4 x 4 x (3 x 3 x 3 x 4) = 1,728
    small = layers.DepthwiseConv2D(3, strides=2, padding="same")(large)  # 2 x 2 x (3 x 3 x 4) = 144
    # 4 x 4 x (3 x 3 x 4 + 4 x 4) = 832, and 2 x 2 x 52 = 208
    outputs = [layers.GlobalAveragePooling2D()(shared(level)) for level in (large, small)]
    network = keras.Model(images, layers.Dense(5)(outputs[0] + outputs[1]))  # 20
    assert multiply_adds(network) == 1728 + 144 + 832 + 208 + 20


def test_groups_and_transposed_convolutions_by_hand():
    images = keras.Input((8, 8, 4))
    grouped = GroupedConv2D(6, 3, groups=2, padding="same")(images)  # 8 x 8 x (3 x 3 x 2 x 6) = 6,912
    larger = layers.Conv2DTranspose(5, 2, strides=2)(
        grouped
    )  # each of 8 x 8 places to 2 x 2: 8 x 8 x (2 x 2 x 6 x 5) = 7,680
    assert multiply_adds(keras.Model(images, larger)) == 6912 + 7680


def test_regions_of_an_image_count_each():
    """However a network puts them: an axis of their own, or one with the images."""
    images = keras.Input((4, 4, 8))
    regions = keras.ops.reshape(images, (-1, 4, 4, 8))  # four a side, of an image
    dense = layers.Dense(5)(regions)  # 16 x (8 x 5) = 640
    flat = layers.Conv2D(2, 1)(keras.ops.reshape(images, (-1, 2, 2, 8)))  # 4 x 2 x 2 x (8 x 2) = 256
    assert multiply_adds(keras.Model(images, [dense, flat])) == 640 + 256


def small_mask_rcnn(**changes):
    hparams = hyperparameters_of("mask-rcnn-resnet18", {"image_size": 64, **changes})
    return build_detector(hparams, num_classes=5)


BOX_HEAD = 7 * 7 * 256 * 1024 + 1024 * 1024 + 1024 * (6 + 4 * 6)  # two layers, then classes and boxes
MASK_HEAD = 14 * 14 * (4 * 3 * 3 * 256 * 256 + 2 * 2 * 256 * 256) + 28 * 28 * 256 * 6


def test_mask_rcnn_detects_in_every_region_that_it_may_have():
    with unfilled_weights():
        counts = [multiply_adds(small_mask_rcnn(proposals=proposals).network) for proposals in (20, 10)]
    assert counts[0] - counts[1] == 10 * BOX_HEAD


def test_mask_rcnn_learns_from_the_regions_that_are_drawn():
    with unfilled_weights():
        detector = small_mask_rcnn(regions_an_image=16, positive_regions=0.25)
        heads = multiply_adds(detector.trained_network()) - multiply_adds(detector.first_stage)
    assert heads == 16 * BOX_HEAD + 4 * MASK_HEAD


def test_a_model_inside_a_model():
    inputs = keras.Input((None, None, 3))
    head = keras.Model(inputs, layers.Conv2D(2, 1)(inputs))
    images = keras.Input((8, 8, 3))
    both = [head(images), head(layers.AveragePooling2D(2)(images))]
    assert multiply_adds(keras.Model(images, both)) == (64 + 16) * 3 * 2


def test_training_takes_three_passes_and_of_frozen_layers_one():
    images = keras.Input((4, 4, 3))
    stem = layers.Conv2D(2, 1)  # 16 x 6 = 96
    network = keras.Model(images, layers.Conv2D(1, 1)(stem(images)))  # 16 x 2 = 32
    assert training_multiply_adds(network) == 3 * (96 + 32)
    stem.trainable = False
    assert training_multiply_adds(network) == 96 + 3 * 32


def test_resnet_50_at_224():
    """torchvision's table: 4.09 G for resnet50 in its second form (strides in the 3 x 3), 2 M for its classifier."""
    with unfilled_weights():
        images = keras.Input((224, 224, 3))
        features = build_resnet(images, "resnet50")
        assert multiply_adds(keras.Model(images, features)) == pytest.approx(4.09e9, abs=0.01e9)


def test_retinanet_at_800_with_264_classes():
    """mlperf-detectors.md 1.1, computed there from the layer sizes: the first two stages are frozen in training."""
    with unfilled_weights():
        detector = build_detector(hyperparameters_of("retinanet-resnext50", {}), num_classes=264)
        assert multiply_adds(detector.network) == pytest.approx(201.2e9, rel=1e-3)
        assert 2 * training_multiply_adds(detector.network) == pytest.approx(1.169e12, rel=1e-3)
