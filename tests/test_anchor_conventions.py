"""Anchors of RetinaNet, region proposals and SSD300 against their references' output, and grids of various levels."""

import numpy as np
import pytest

from efficientdet.plugins.mask_rcnn.presets import proposal_sizes
from efficientdet.plugins.ssd.default_boxes import ssd300_levels
from object_detection.geometry.anchor_grid import (
    RETINANET_SIZES,
    AnchorConfig,
    AnchorLevel,
    anchor_grid,
    feature_sizes,
    grid_of_levels,
    rounded_levels,
)

TWO_SHAPES = ((4.0, 8.0), (10.0, 2.0))


def retinanet_grid(image_size):
    return grid_of_levels(rounded_levels(image_size, feature_sizes(image_size, 7)[3:], sizes=RETINANET_SIZES))


def proposal_grid(image_size):
    return grid_of_levels(rounded_levels(image_size, feature_sizes(image_size, 6)[2:], sizes=proposal_sizes()))


@pytest.mark.parametrize(
    ("name", "grid_of", "image_size"),
    [
        ("retinanet_anchors_800x800", retinanet_grid, (800, 800)),
        ("retinanet_anchors_256x320", retinanet_grid, (256, 320)),
        ("maskrcnn_anchors_192x256", proposal_grid, (192, 256)),
        ("maskrcnn_anchors_224x288", proposal_grid, (224, 288)),
    ],
)
def test_torchvisions_anchors_to_the_last_bit(golden_folder, name, grid_of, image_size):
    golden = np.load(golden_folder / "families" / f"{name}.npz")
    grid = grid_of(image_size)
    np.testing.assert_array_equal(grid.boxes[:, [1, 0, 3, 2]], golden["anchors"])
    assert grid.level_sizes == tuple(
        len(cell) * rows * columns
        for cell, (rows, columns) in zip(golden["cell_anchors"], golden["grids"], strict=True)
    )


def test_ssds_default_boxes(golden_folder):
    golden = np.load(golden_folder / "families" / "ssd_default_boxes.npz")
    grid = grid_of_levels(ssd300_levels())
    assert len(grid) == 8732
    assert grid.level_sizes == (5776, 2166, 600, 150, 36, 4)
    np.testing.assert_allclose(grid.boxes[:, [1, 0, 3, 2]], golden["ltrb"] * 300, atol=1e-4)


GRIDS = {
    "EfficientDet": anchor_grid(AnchorConfig(), (100, 75)),
    "RetinaNet": retinanet_grid((75, 100)),
    "SSD300": grid_of_levels(ssd300_levels()),
    "of any kind": grid_of_levels(
        [
            AnchorLevel(
                counts=(3, 4), strides=(5.0, 7.5), offset=(-2.0, 3.0), shapes=TWO_SHAPES, center_limit=(6.0, 20.0)
            ),
            AnchorLevel(counts=(1, 2), strides=(50.0, 7.0), offset=(9.0, 0.0), shapes=TWO_SHAPES[:1]),
            AnchorLevel(
                counts=(4, 5),
                strides=(9.0, 4.0),
                offset=(1.0, 1.0),
                shapes=TWO_SHAPES,
                shape_major=True,
                center_limit=(12.0, 8.0),
            ),
        ]
    ),
}


@pytest.mark.parametrize("name", GRIDS)
def test_the_lattices_are_the_boxes(name):
    """Cell by cell: each anchor stands on one lattice, where that says."""
    grid, met = GRIDS[name], np.zeros(len(GRIDS[name]), int)
    assert sum(grid.level_sizes) == len(grid)
    for lattice, (rows, columns) in enumerate(grid.counts.T):
        for row in range(rows):
            for column in range(columns):
                number = grid.first[lattice] + row * grid.steps[0, lattice] + column * grid.steps[1, lattice]
                center = grid.centers[:, lattice] + (row, column) * grid.strides[:, lattice]
                half = grid.sides[:, lattice] / 2
                np.testing.assert_allclose(grid.boxes[number], [*(center - half), *(center + half)], atol=1e-3)
                met[number] += 1
    assert (met == 1).all()
