import keras
import numpy as np
import pytest
import tensorflow as tf

from model.bifpn import BifpnConfig, NearestResize, WeightedFusion, build_bifpn, cell_nodes
from model.detection_model import named_variables

LEVELS_3_TO_7 = [
    (6, [3, 4]),
    (5, [2, 5]),
    (4, [1, 6]),
    (3, [0, 7]),
    (4, [1, 7, 8]),
    (5, [2, 6, 9]),
    (6, [3, 5, 10]),
    (7, [4, 11]),
]
LEVELS_3_TO_8 = [
    (7, [4, 5]),
    (6, [3, 6]),
    (5, [2, 7]),
    (4, [1, 8]),
    (3, [0, 9]),
    (4, [1, 9, 10]),
    (5, [2, 8, 11]),
    (6, [3, 7, 12]),
    (7, [4, 6, 13]),
    (8, [5, 14]),
]


def pyramid_of(config, *, side=64, channels=(5, 6, 7)):
    """A model from backbone features of levels 3 to 5 to the pyramid."""
    inputs = [
        keras.Input((side >> level, side >> level, number)) for level, number in zip(range(3, 6), channels, strict=True)
    ]
    return keras.Model(inputs, build_bifpn(inputs, config))


@pytest.mark.parametrize(("max_level", "table"), [(7, LEVELS_3_TO_7), (8, LEVELS_3_TO_8)])
def test_the_nodes_are_the_published_ones(max_level, table):
    assert cell_nodes(3, max_level) == table


def test_the_nodes_of_a_quad_pyramid():
    """The list of effdet's `qufpn_config` from level 3 to 5, where paths are short."""
    assert cell_nodes(3, 5, "qufpn") == [
        *[(4, [1, 2]), (3, [0, 3]), (4, [1, 3, 4]), (5, [2, 5])],
        *[(4, [1, 0]), (5, [2, 7]), (4, [1, 7, 8]), (3, [0, 9])],
        *[(3, [4, 10]), (4, [5, 9]), (5, [6, 8])],
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight_method": "sum"},
        {"separable_conv": False},
        {"conv_bn_act_pattern": True},
        {"max_level": 8},
        {"conv_after_downsample": True},
        {"apply_bn_for_resampling": False},
        {"activation": "relu"},
    ],
)
def test_shapes_and_finite_values_of_every_variant(changes):
    pyramid = pyramid_of(BifpnConfig(**{"filters": 8, "cells": 1, **changes}), side=96)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(2, *tensor.shape[1:])).astype(np.float32) for tensor in pyramid.inputs]
    outputs = pyramid(inputs)
    sides = [12, 6, 3, 2, 1, 1][: changes.get("max_level", 7) - 2]  # 3 -> 2 -> 1: nearest upwards is by no whole factor
    assert [tuple(output.shape) for output in outputs] == [(2, side, side, 8) for side in sides]
    assert all(np.isfinite(output).all() for output in outputs)
    names = set(named_variables(pyramid))
    assert any("/WSM" in name for name in names) == (changes.get("weight_method") != "sum")
    assert ("fpn_cells/cell_0/fnode0/op_after_combine5/conv/bias" in names) == (
        "conv_bn_act_pattern" not in changes
    ) or "max_level" in changes
    assert ("resample_p6/bn/gamma" in names) == ("apply_bn_for_resampling" not in changes)


def test_coarse_levels_are_pooled_without_padding_winning():
    pyramid = pyramid_of(BifpnConfig(filters=4, cells=1), channels=(4, 4, 4), side=128)
    pooled = keras.Model(pyramid.inputs, pyramid.get_layer("resample_p6.pool").output)
    features = -1.0 - np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1).repeat(4, axis=-1)  # all negative
    outputs = pooled([np.zeros((1, 16, 16, 4), np.float32), np.zeros((1, 8, 8, 4), np.float32), features])
    np.testing.assert_array_equal(outputs[0, :, :, 0], [[-1, -3], [-9, -11]])


def fusion_of(weights, *, fusion_relu=True):
    layer = WeightedFusion(fusion_relu=fusion_relu)
    layer.build([(None, 2, 2, 3)] * len(weights))
    layer.set_weights([np.float32(weight) for weight in weights])
    return layer


def test_fusion_by_hand():
    inputs = [tf.fill([1, 2, 2, 3], value) for value in (1.0, 10.0, 100.0)]
    found = fusion_of([1.0, 2.0, 3.0])(inputs)
    np.testing.assert_allclose(found, np.full((1, 2, 2, 3), 321 / 6.0001), rtol=1e-6)
    negative = fusion_of([1.0, -2.0, 3.0])(inputs)
    np.testing.assert_allclose(negative, np.full((1, 2, 2, 3), 301 / 4.0001), rtol=1e-6)
    without_relu = fusion_of([1.0, -2.0, 3.0], fusion_relu=False)(inputs)
    np.testing.assert_allclose(without_relu, np.full((1, 2, 2, 3), 281 / 2.0001), rtol=1e-6)


def test_fusion_divides_in_float32_under_16_bits():
    """In float16 the sum of these weights is infinite, and each share of it nothing."""
    layer = WeightedFusion(dtype="mixed_float16")
    layer.build([(None, 2, 2, 3)] * 2)
    layer.set_weights([np.float32(60_000), np.float32(20_000)])
    assert sum(layer.get_weights()) > np.finfo(np.float16).max
    outputs = layer([tf.fill([1, 2, 2, 3], tf.cast(value, tf.float16)) for value in (8.0, 4.0)])
    assert outputs.dtype == tf.float16
    np.testing.assert_array_equal(outputs, np.full((1, 2, 2, 3), 7, np.float16))  # 3/4 of 8 and 1/4 of 4


UPSAMPLINGS = {  # convention -> the rule in exact arithmetic: source of row i where h rows become H
    False: lambda i, h, H: i * h // H,
    True: lambda i, h, H: (2 * i + 1) * h // (2 * H),
}


@pytest.mark.parametrize("half_pixel", UPSAMPLINGS)
@pytest.mark.parametrize("source", [1, 2, 3, 5, 12, 20, 47, 50, 96])
def test_upsampling_copies_what_tensorflow_copies(source, half_pixel):
    """The sizes that a pyramid has: twice the coarser map's or one less."""
    features = np.arange(source * (source + 1), dtype=np.float32).reshape(1, source, source + 1, 1)
    for size in [(2 * source, 2 * source + 2), (2 * source - 1, 2 * source + 1), (source, source + 1)]:
        wanted = tf.raw_ops.ResizeNearestNeighbor(
            images=features, size=size, align_corners=False, half_pixel_centers=half_pixel
        )
        np.testing.assert_array_equal(NearestResize(size, half_pixel_centers=half_pixel)(features), wanted)


def test_layers_survive_their_configuration():
    for layer in (
        WeightedFusion(fusion_relu=False),
        NearestResize((5, 3)),
        NearestResize((5, 3), half_pixel_centers=True),
    ):
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
