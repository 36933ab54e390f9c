"""ATSS against plain NumPy that compares every object with every anchor."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.assignment.atss import AtssAssigner
from object_detection.geometry.anchor_conventions import RETINANET_SIZES, rounded_levels, ssd300_levels
from object_detection.geometry.anchor_grid import AnchorConfig, anchor_grid, feature_sizes, grid_of_levels
from object_detection.geometry.box_coding import PLAIN_BOX_CODER
from object_detection.structures import Objects

GRIDS = {
    "D0": anchor_grid(AnchorConfig(), (128, 160)),
    "one anchor per cell": anchor_grid(
        AnchorConfig(num_scales=1, aspect_ratios=((1.0, 1.0),), anchor_scale=8.0), (128, 128)
    ),
    "narrow": anchor_grid(AnchorConfig(max_level=6), (40, 400)),
    "uneven": anchor_grid(AnchorConfig(min_level=2, num_scales=2, aspect_ratios=((1, 1), (3, 0.2))), (100, 75)),
    "one cell": anchor_grid(AnchorConfig(), (1, 1)),
    "RetinaNet's": grid_of_levels(rounded_levels((128, 160), feature_sizes((128, 160), 7)[3:], sizes=RETINANET_SIZES)),
    "SSD300's": grid_of_levels(ssd300_levels()),  # with centers clipped to the image
}


def random_objects(seed, *, side=120.0, images=2, slots=6):
    random = np.random.default_rng(seed)
    corners = random.uniform(0, side, (images, slots, 2))
    sides = np.exp(random.uniform(np.log(3), np.log(side), (images, slots, 2)))
    return Objects.of_boxes(
        np.concatenate([corners, corners + sides], axis=-1).astype(np.float32),
        random.integers(0, 5, (images, slots)).astype(np.int32),
        random.random((images, slots)) < 0.8,
        random.random((images, slots)) < 0.2,
    )


def oracle(boxes, assignable, grid):
    """The object of each anchor, -1 for none, and the least difference between an IoU and its threshold."""
    best, assigned, margin = np.zeros(len(grid)), np.full(len(grid), -1), np.inf
    anchors = grid.boxes.astype(np.float64)
    centers = (anchors[:, :2] + anchors[:, 2:]) / 2
    ends = np.cumsum(grid.level_sizes)
    for number in np.flatnonzero(assignable):
        box = boxes[number].astype(np.float64)
        distances = np.hypot(*(centers - (box[:2] + box[2:]) / 2).T)
        candidates = []
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            cells = len(np.unique(centers[first:end].round(3), axis=0))
            count = min(9, cells) * (end - first) // cells
            candidates += [*(first + np.argsort(distances[first:end].round(3), kind="stable")[:count])]
        overlaps = np.array([oracles.iou(box, anchors[anchor]) for anchor in candidates])
        threshold = overlaps.mean() + (overlaps.std(ddof=1) if len(overlaps) > 1 else 0)
        margin = min([margin, *np.abs(overlaps - threshold)[overlaps > 0]])
        for anchor, overlap in zip(candidates, overlaps, strict=True):
            sides = np.concatenate([centers[anchor] - box[:2], box[2:] - centers[anchor]])
            if overlap >= threshold and sides.min() > 0.01 and overlap > best[anchor]:
                best[anchor], assigned[anchor] = overlap, number
    return assigned, margin


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in GRIDS), ("D0", True)])
def test_random_objects_against_the_oracle(name, compiled):
    grid, positives = GRIDS[name], 0
    assign = tf.function(
        lambda objects: AtssAssigner().assign(objects, grid, box_coder=PLAIN_BOX_CODER), jit_compile=compiled
    )
    for seed in range(3):
        objects = random_objects(seed, side=250.0 if name == "SSD300's" else 120.0)
        targets = to_numpy(assign(Objects(*map(tf.constant, objects))))
        assert not targets.ignored.any()
        for image in range(2):
            assigned, margin = oracle(objects.boxes[image], objects.valid[image] & ~objects.crowd[image], grid)
            assert margin > 1e-6  # rounding decides nothing
            np.testing.assert_array_equal(targets.positive[image], assigned >= 0)
            positives += (assigned >= 0).sum()
            for anchor in range(len(grid)):
                if assigned[anchor] < 0:
                    assert targets.classes[image, anchor] == 0
                    assert not targets.box_deltas[image, anchor].any()
                else:
                    number = assigned[anchor]
                    assert targets.classes[image, anchor] == objects.classes[image, number]
                    offsets = oracles.encode(objects.boxes[image, number], grid.boxes[anchor])
                    np.testing.assert_allclose(targets.box_deltas[image, anchor], offsets, atol=1e-4)
    assert positives > 5 or name == "one cell"


def test_degenerate_objects_have_no_anchor():
    objects = random_objects(0)
    grid = GRIDS["D0"]
    for boxes in (np.zeros((2, 6, 4)), np.full((2, 6, 4), 1e9), np.tile([50, 50, 50, 90], (2, 6, 1))):
        everything = objects._replace(boxes=boxes.astype(np.float32), valid=np.ones((2, 6), bool))
        targets = to_numpy(AtssAssigner().assign(everything, grid, box_coder=PLAIN_BOX_CODER))
        assert not targets.positive.any()
        assert np.isfinite(targets.box_deltas).all()
