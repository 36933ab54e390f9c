import numpy as np
import oracles
import pytest
from oracles import TESTDATA

from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid


@pytest.mark.parametrize("name", ["d0_320x448", "d0_512", "d7_256x384", "d7x_512"])
def test_the_published_anchors_to_the_last_bit(name):
    golden = np.load(TESTDATA / f"anchors_{name}.npz")
    config = AnchorConfig(
        min_level=int(golden["min_level"]),
        max_level=int(golden["max_level"]),
        anchor_scale=float(golden["anchor_scale"]),
    )
    np.testing.assert_array_equal(anchor_grid(config, tuple(golden["image_size"])).boxes, golden["boxes"])


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
