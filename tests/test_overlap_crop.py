"""SSD's crop: from the same draws what its words say, step by step in NumPy; and in no case without an end."""

from functools import lru_cache

import numpy as np
import oracles
import pytest
import tensorflow as tf
from PIL import Image
from test_augmentation import encoded, picture

from efficientdet.plugins.ssd.overlap_crop import OverlapCrop

WHOLE = "the whole image"
OPTIONS = (WHOLE, 0.1, 0.3, 0.5, 0.7, 0.9, None)


def drawn_by_words(source, seed, boxes, *, tries=1):
    """(top, left, bottom, right) of the part in pixels. boxes in pixels, yxyx."""
    height, width = source
    for number in range(1000):
        part = tf.random.experimental.stateless_fold_in(tf.constant(seed, tf.int64), 2 + number // 16)
        draws = tf.random.stateless_uniform([16, 1 + 4 * tries], seed=part).numpy()[number % 16]
        option = OPTIONS[int(draws[0] * 7)]
        if option == WHOLE:
            return 0, 0, height, width
        for h, w, y, x in draws[1:].reshape(-1, 4):
            h, w = (np.float32(0.3) + np.float32(0.7) * side for side in (h, w))
            if not 0.5 <= w / h <= 2:
                continue
            top, left = y * (1 - h), x * (1 - w)
            crop = [int(top * height), int(left * width), int((top + h) * height), int((left + w) * width)]
            if option is not None and not all(oracles.iou(crop, box) > option for box in boxes):
                continue
            if any(center_is_inside(box, crop) for box in boxes):
                return tuple(crop)
    raise AssertionError("no end")


def center_is_inside(box, crop):
    y, x = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return crop[0] < y < crop[2] and crop[1] < x < crop[3]


def draw(augmentation, source, seed, boxes):
    """Fractions of the image as a record has them."""
    fractions = tf.constant(np.float32(boxes).reshape(-1, 4) / [*source, *source], tf.float32)
    return program(augmentation)(tf.constant(source, tf.int32), tf.constant(seed, tf.int64), fractions), fractions


@lru_cache
def program(augmentation):
    return tf.function(
        augmentation.draw,
        input_signature=[
            tf.TensorSpec([2], tf.int32),
            tf.TensorSpec([2], tf.int64),
            tf.TensorSpec([None, 4], tf.float32),
        ],
    )


def some_boxes(random, source, count):
    sides = random.uniform(0.1, 0.7, (count, 2)) * source
    corner = random.uniform(0, 1, (count, 2)) * (source - sides)
    return np.concatenate([corner, corner + sides], axis=1)


@pytest.mark.parametrize("tries", [1, 50])
def test_crops_are_those_of_the_words(tries):
    """Boxes and pixels too: a part of the image, its objects cut to it, those left whose centers are in it."""
    augmentation, random, cut = (
        OverlapCrop((60, 80), tries=tries, flip_probability=0.0),
        np.random.default_rng(tries),
        0,
    )
    for number in range(40 if tries == 1 else 12):
        source = random.integers(50, 200, 2)
        boxes = some_boxes(random, source, random.integers(1, 5))
        crop, fractions = draw(augmentation, source, [7, number], boxes)
        wanted = drawn_by_words(source, [7, number], boxes, tries=tries)
        np.testing.assert_array_equal(np.concatenate([crop.offset, crop.offset + crop.window]), wanted)
        assert crop.size.numpy().tolist() == [60, 80]
        moved, kept = augmentation.boxes(fractions, crop, source_size=tf.constant(source, tf.int32))
        assert kept.numpy().tolist() == [center_is_inside(box, wanted) for box in boxes]
        (top, left, bottom, right), zoom = wanted, np.divide([60, 80], [wanted[2] - wanted[0], wanted[3] - wanted[1]])
        clipped = np.clip(boxes, [top, left, top, left], [bottom, right, bottom, right]) - [top, left, top, left]
        np.testing.assert_allclose(moved.numpy()[kept], (clipped * [*zoom, *zoom])[kept], atol=2e-3)
        cut += wanted != (0, 0, *source)
    assert cut > 5


def test_pixels_are_pillows():
    """Antialiased where the part shrinks."""
    source = picture(240, 200)
    augmentation = OverlapCrop((50, 60))
    flips = set()
    for number in range(8):
        crop, _ = draw(augmentation, (240, 200), [3, number], [[20, 20, 220, 180]])
        top, left, bottom, right = np.concatenate([crop.offset, crop.offset + crop.window])
        part = Image.fromarray(source[top:bottom, left:right]).resize((60, 50), Image.Resampling.BILINEAR)
        seen = augmentation.image(tf.constant(encoded(source)), crop).numpy()
        np.testing.assert_array_equal(seen[:, ::-1] if crop.flip else seen, part)
        flips.add(bool(crop.flip))
    assert flips == {False, True}


@pytest.mark.parametrize(
    ("source", "boxes"),
    [
        ((60, 80), np.zeros((0, 4))),  # nothing to learn
        ((60, 80), [[10, 10, 10, 50]]),  # nor here
        ((1, 1), [[0, 0, 1, 1]]),
        ((1, 500), [[0, 0, 1, 500]]),
        ((400, 300), [[0, 0, 2, 2], [398, 298, 400, 300]]),  # no part overlaps both that much
        ((400, 300), [[0, 0, 0.5, 0.5]]),
        ((60, 80), [[-10, -10, 70, 90]]),  # beyond the image, as a careless converter has it
        ((100, 100), [[row, column, row + 1, column + 1] for row in range(0, 100, 10) for column in range(0, 100, 10)]),
    ],
)
def test_every_image_gets_a_crop_with_an_object(source, boxes):
    augmentation = OverlapCrop((16, 16))
    data = tf.constant(encoded(np.full((*source, 3), 9, np.uint8)))
    has_object = any(box[2] > box[0] and box[3] > box[1] for box in np.reshape(boxes, (-1, 4)))
    for number in range(20):
        crop, fractions = draw(augmentation, source, [0, number], boxes)
        top, left, bottom, right = np.concatenate([crop.offset, crop.offset + crop.window])
        assert 0 <= top < bottom <= source[0]
        assert 0 <= left < right <= source[1]
        _, kept = augmentation.boxes(fractions, crop, source_size=tf.constant(source, tf.int32))
        assert bool(kept.numpy().any()) == has_object
        assert (augmentation.image(data, crop).numpy() == 9).all()
