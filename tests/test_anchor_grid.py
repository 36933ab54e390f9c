import numpy as np
import oracles
import pytest
from oracles import TESTDATA

from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid, feature_sizes


@pytest.mark.parametrize("name", ["d0_320x448", "d0_512", "d7_256x384", "d7x_512"])
def test_the_published_anchors_to_the_last_bit(name):
    golden = np.load(TESTDATA / f"anchors_{name}.npz")
    config = AnchorConfig(
        min_level=int(golden["min_level"]),
        max_level=int(golden["max_level"]),
        anchor_scale=float(golden["anchor_scale"]),
    )
    np.testing.assert_array_equal(anchor_grid(config, tuple(golden["image_size"])).boxes, golden["boxes"])


def test_the_first_anchors_by_hand():
    anchors = anchor_grid(AnchorConfig(aspect_ratios=((1, 1), (1.4, 0.7), (0.7, 1.4))), (512, 512)).boxes
    side = 16 * 2 ** (1 / 3)
    np.testing.assert_allclose(
        anchors[:4],
        [
            (-12, -12, 20, 20),
            (-7.2, -18.4, 15.2, 26.4),
            (-18.4, -7.2, 26.4, 15.2),
            (4 - side, 4 - side, 4 + side, 4 + side),
        ],
        rtol=1e-6,
    )
    np.testing.assert_allclose(anchors[9, :2], (-12, -4))  # the next cell lies to the right
    np.testing.assert_allclose(anchors[9 * 64, :2], (-4, -12))  # a row of cells later, below


@pytest.mark.parametrize("image_size", [(100, 75), (33, 129), (64, 64)])
def test_uneven_sizes_against_the_oracle(image_size):
    config = AnchorConfig(
        min_level=2, max_level=5, num_scales=2, aspect_ratios=((1.0, 1.0), (2.0, 0.25)), anchor_scale=3.0
    )
    wanted = oracles.anchors(
        image_size, levels=(2, 3, 4, 5), num_scales=2, aspect_ratios=config.aspect_ratios, anchor_scale=3.0
    )
    anchors = anchor_grid(config, image_size).boxes
    np.testing.assert_allclose(anchors, wanted, atol=1e-4)
    assert config.per_cell == 4
    assert list(config.levels) == [2, 3, 4, 5]


def test_feature_maps_of_a_size_that_is_no_power_of_two():
    assert feature_sizes((320, 500), 7) == [
        (320, 500),
        (160, 250),
        (80, 125),
        (40, 63),
        (20, 32),
        (10, 16),
        (5, 8),
        (3, 4),
    ]


def test_an_image_of_one_pixel_has_one_cell_a_level():
    anchors = anchor_grid(AnchorConfig(num_scales=1, aspect_ratios=((1.0, 1.0),)), (1, 1)).boxes
    np.testing.assert_array_equal(anchors, [[-1.5, -1.5, 2.5, 2.5]] * 5)
