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
