"""Task-aligned assignment against plain NumPy, and what it does to normalizers."""

import numpy as np
import oracles
import pytest
import tensorflow as tf
from oracles import to_numpy

from object_detection.assignment.task_aligned import TaskAlignedAssigner
from object_detection.geometry.anchor_grid import (
    RETINANET_SIZES,
    AnchorConfig,
    anchor_grid,
    feature_sizes,
    grid_of_levels,
    rounded_levels,
)
from object_detection.geometry.box_coding import PLAIN_BOX_CODER
from object_detection.structures import Objects

GRIDS = {
    "D0": anchor_grid(AnchorConfig(), (64, 96)),
    "RetinaNet's": grid_of_levels(rounded_levels((64, 96), feature_sizes((64, 96), 7)[3:], sizes=RETINANET_SIZES)),
    "fewer than 13 anchors": anchor_grid(AnchorConfig(min_level=5, max_level=6, num_scales=1), (64, 64)),
}


def random_case(seed, grid, *, images=2, slots=7):
    random = np.random.default_rng(seed)
    corners = random.uniform(-5, 60, (images, slots, 2))
    boxes = np.concatenate([corners, corners + random.uniform(6, 50, (images, slots, 2))], axis=-1)
    objects = Objects.of_boxes(
        boxes.astype(np.float32),
        random.integers(0, 5, (images, slots)).astype(np.int32),
        random.random((images, slots)) < 0.8,
        random.random((images, slots)) < 0.2,
    )
    logits = random.normal(size=(images, len(grid), 5)).astype(np.float32) * 2 - 2
    return objects, logits, random.normal(size=(images, len(grid), 4)).astype(np.float32) * 0.3


def assigned(objects, logits, deltas, grid, *, compiled=False):
    def assign(objects, logits, deltas):
        return TaskAlignedAssigner().assign(objects, grid, box_coder=PLAIN_BOX_CODER, outputs=(logits, deltas))

    assign = tf.function(assign, jit_compile=compiled)
    return to_numpy(assign(Objects(*map(tf.constant, objects)), tf.constant(logits), tf.constant(deltas)))


def oracle(boxes, classes, assignable, logits, deltas, grid):
    """Object (-1 for none) and score of each anchor of an image."""
    pairs = []  # object, anchor, alignment, IoU
    for number in np.flatnonzero(assignable):
        found = []
        for anchor, place in enumerate(grid.boxes.astype(np.float64)):
            center, box = (place[:2] + place[2:]) / 2, boxes[number].astype(np.float64)
            if min([*(center - box[:2]), *(box[2:] - center)]) > 0.01:
                overlap = oracles.iou(oracles.decode(deltas[anchor].astype(np.float64), place), box)
                score = 1 / (1 + np.exp(-logits[anchor, classes[number]]))
                found.append((number, anchor, score * overlap**6, overlap))
        pairs += [pair for pair in sorted(found, key=lambda pair: -pair[2])[:13] if pair[2] > 0]
    objects, scores, best = np.full(len(grid), -1), np.zeros(len(grid)), np.zeros(len(grid))
    for number, anchor, _, overlap in pairs:
        if overlap > best[anchor]:
            objects[anchor], best[anchor] = number, overlap
    own = [pair for pair in pairs if objects[pair[1]] == pair[0]]
    for number, anchor, alignment, _ in own:
        of_object = [pair for pair in own if pair[0] == number]
        largest = max(pair[2] for pair in of_object)
        scores[anchor] = alignment / largest * max(pair[3] for pair in of_object)
    return objects, scores


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in GRIDS), ("D0", True)])
def test_random_outputs_against_the_oracle(name, compiled):
    grid = GRIDS[name]
    for seed in range(2):
        objects, logits, deltas = random_case(seed, grid)
        targets = assigned(objects, logits, deltas, grid, compiled=compiled)
        assert targets.positive.sum() > 5
        assert not targets.ignored.any()
        for image in range(2):
            assignable = objects.valid[image] & ~objects.crowd[image]
            of_anchors, scores = oracle(
                objects.boxes[image], objects.classes[image], assignable, logits[image], deltas[image], grid
            )
            positive = of_anchors >= 0
            np.testing.assert_array_equal(targets.positive[image], positive)
            np.testing.assert_allclose(targets.scores[image], scores, rtol=1e-3, atol=1e-6)
            np.testing.assert_array_equal(
                targets.classes[image], np.where(positive, objects.classes[image][of_anchors], 0)
            )
            for anchor in range(len(grid)):
                wanted = np.zeros(4)
                if positive[anchor]:
                    wanted = oracles.encode(objects.boxes[image, of_anchors[anchor]], grid.boxes[anchor])
                np.testing.assert_allclose(targets.box_deltas[image, anchor], wanted, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_extreme_outputs_and_no_objects(compiled):
    grid = GRIDS["D0"]
    objects, logits, deltas = random_case(0, grid)
    for factor in (-1e3, 1e3, 1e30):
        targets = assigned(objects, logits * np.float32(factor), deltas * np.float32(factor), grid, compiled=compiled)
        assert all(np.isfinite(values).all() for values in targets)
        assert targets.scores.max() <= 1.0
    for nothing in (objects._replace(valid=np.zeros((2, 7), bool)), objects._replace(crowd=np.ones((2, 7), bool))):
        targets = assigned(nothing, logits, deltas, grid, compiled=compiled)
        assert not targets.positive.any()
        assert not targets.scores.any()


def test_objects_that_were_padded_differently_have_the_same_targets():
    grid = GRIDS["D0"]
    objects, logits, deltas = random_case(1, grid)
    padded = Objects(*(np.concatenate([values, np.zeros_like(values)], axis=1) for values in objects))
    for one, other in zip(assigned(objects, logits, deltas, grid), assigned(padded, logits, deltas, grid), strict=True):
        np.testing.assert_array_equal(one, other)
