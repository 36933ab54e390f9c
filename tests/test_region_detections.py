"""Detections of regions against torchvision's."""

import numpy as np
import pytest
import tensorflow as tf
from oracles import to_numpy

from efficientdet.plugins.mask_rcnn.regions import REGION_BOX_CODER, region_detections

YX = [1, 0, 3, 2]


def detections_of(*arrays, compiled=False, **options):
    return to_numpy(
        tf.function(region_detections, jit_compile=compiled, autograph=False)(*map(tf.constant, arrays), **options)
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_the_published_detections(golden_folder, compiled):
    golden = np.load(golden_folder / "families" / "maskrcnn_box_postprocess.npz")
    logits, deltas = golden["class_logits"].reshape(2, 240, 7), golden["box_regression"].reshape(2, 240, 7, 4)[..., YX]
    regions = np.stack([golden["proposals0"], golden["proposals1"]])[..., YX]
    found, numbers = detections_of(
        logits, deltas, regions, np.ones((2, 240), bool), golden["image_sizes"], compiled=compiled
    )
    for image in range(2):
        count = len(golden[f"labels{image}"])
        assert found.valid[image].tolist() == [True] * count + [False] * (100 - count)
        np.testing.assert_allclose(found.boxes[image, :count][:, YX], golden[f"boxes{image}"], atol=1e-2)
        np.testing.assert_allclose(found.scores[image, :count], golden[f"scores{image}"], atol=1e-5)
        np.testing.assert_array_equal(found.classes[image, :count] + 1, golden[f"labels{image}"])
        of_regions, classes = numbers[image, :count], golden[f"labels{image}"]
        decoded = np.asarray(REGION_BOX_CODER.decode(deltas[image, of_regions, classes], regions[image, of_regions]))
        limits = np.tile(golden["image_sizes"][image], 2)
        np.testing.assert_allclose(found.boxes[image, :count], np.clip(decoded, 0, limits), atol=1e-3)
        assert not numbers[image, count:].any()


def test_by_hand():
    """Regions: a padded one, which would be best; one outside the image; two overlaps, of two classes and of one."""
    regions = np.float32([[[0, 0, 9, 9], [0, 50, 9, 59], [10, 10, 30, 30], [10, 10, 30, 32]]])
    logits = np.log(np.float32([[[1, 98, 1], [1, 98, 1], [10, 60, 30], [20, 70, 10]]]))
    deltas = np.zeros((1, 4, 3, 4), np.float32)
    deltas[0, 2, 2] = [10, 0, 0, 0]  # a whole height further down
    found, numbers = detections_of(logits, deltas, regions, np.array([[False, True, True, True]]), np.int32([[40, 40]]))
    assert found.valid.sum() == 3
    np.testing.assert_array_equal(numbers[0, :3], [3, 2, 3])
    np.testing.assert_array_equal(found.classes[0, :3], [0, 1, 1])
    np.testing.assert_allclose(found.scores[0, :3], [0.7, 0.3, 0.1], rtol=1e-5)
    np.testing.assert_allclose(found.boxes[0, :3], [[10, 10, 30, 32], [30, 10, 40, 30], [10, 10, 30, 32]], atol=1e-4)
