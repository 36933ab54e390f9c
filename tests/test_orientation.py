"""Random vertical flips and rotations by 90 degrees: pixels, boxes and masks move together."""

import numpy as np
import pytest
import tensorflow as tf

from dataset.input.composition import View
from dataset.input.orientation import RandomOrientation
from object_detection.structures import Objects

SIDE, SIZE = 8, (5, 7)  # of the input and of the valid area: no orientation of it equals another one


def view_of(pixels):
    """Two objects, drawn in the image with their numbers; the mask of the first one is its upper left half."""
    image = np.zeros((*pixels, 3), np.uint8)
    image[: SIZE[0], : SIZE[1]] = 9
    image[0:3, 0:2], image[0:2, 3:7] = 50, 100
    triangle = np.triu(np.ones((4, 4), np.uint8))[:, ::-1]
    return View(
        image=tf.constant(image),
        size=tf.constant(SIZE),
        objects=Objects(
            boxes=tf.constant([[0.0, 0.0, 3.0, 2.0], [0.0, 3.0, 2.0, 7.0]]),
            classes=tf.constant([0, 1]),
            valid=tf.constant([True, True]),
            crowd=tf.constant([False, False]),
            difficult=tf.constant([False, False]),
            masks=tf.constant(np.stack([triangle, np.ones_like(triangle)])),
        ),
        scale=tf.constant([2.0, 3.0]),
    )


def oriented(number, *, pixels=(SIDE, SIDE), flip=True, rotate=True):
    found = RandomOrientation(flip=flip, rotate=rotate)(view_of(pixels), tf.constant([1, number]))
    return tf.nest.map_structure(lambda values: values.numpy(), found)


def test_boxes_masks_and_size_follow_the_pixels():
    kinds = set()
    for number in range(40):
        seen = oriented(number)
        height, width = seen.size
        assert (seen.image[:height, :width] > 0).all()
        assert not seen.image[height:].any()
        assert not seen.image[:, width:].any()
        for value, box in zip((50, 100), seen.objects.boxes.astype(int), strict=True):
            rows, columns = np.nonzero(seen.image[..., 0] == value)
            assert [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1] == box.tolist()
        transposed = height > width
        assert seen.scale.tolist() == ([3.0, 2.0] if transposed else [2.0, 3.0])
        # the corner of the mask that is all ones was at the upper left
        flipped = seen.objects.boxes[0][1 if transposed else 0] == SIZE[0] - 3
        corner = {(False, False): (0, 0), (True, False): (-1, 0), (False, True): (0, 0), (True, True): (0, -1)}
        row, column = corner[bool(flipped), bool(transposed)]
        mask = seen.objects.masks[0]
        assert mask[row].all()
        assert mask[:, column].all()
        assert mask.sum() == 10
        kinds.add((bool(flipped), bool(transposed)))
    assert len(kinds) == 4


@pytest.mark.parametrize(("flip", "rotate", "count"), [(True, False, 2), (False, True, 2), (False, False, 1)])
def test_only_what_is_chosen(flip, rotate, count):
    images = {oriented(number, flip=flip, rotate=rotate).image.tobytes() for number in range(20)}
    assert len(images) == count


def test_an_image_that_does_not_fit_is_not_transposed():
    assert {tuple(oriented(number, pixels=(6, 8)).size) for number in range(20)} == {SIZE}
    assert {tuple(oriented(number, pixels=(7, 8)).size) for number in range(20)} == {SIZE, SIZE[::-1]}
