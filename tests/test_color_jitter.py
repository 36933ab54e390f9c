"""Changes of colors against Pillow, whose functions torchvision's ColorJitter calls."""

import colorsys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance
from test_augmentation import picture

from efficientdet.plugins.ssd.overlap_crop import ColorJitter

NONE = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
ENHANCERS = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
IN_ORDER = np.arange(4) / 4


def changed(image, draws, order=IN_ORDER, **amounts):
    return ColorJitter(**NONE | amounts).changed(image, np.float32(draws), np.float32(order))


@pytest.mark.parametrize("draw", [0.0, 0.3, 0.5, 0.7, 0.999])
@pytest.mark.parametrize("name", ENHANCERS)
def test_factors_are_pillows(name, draw):
    image = picture(40, 50)
    factor = 1 + 0.6 * (2 * np.float32(draw) - 1)
    wanted = np.asarray(ENHANCERS[name](Image.fromarray(image)).enhance(float(factor))).astype(int)
    assert np.abs(changed(image, [draw] * 4, **{name: 0.6}).astype(int) - wanted).max() <= 1
    if draw == 0.5:
        np.testing.assert_array_equal(wanted, image)


def test_factors_do_not_go_below_nothing():
    assert not changed(picture(8, 8), [0.0] * 4, brightness=3.0).any()


@pytest.mark.parametrize("draw", [0.0, 0.2, 0.5, 0.9])
def test_hues_turn(draw):
    image = picture(20, 20, seed=3)
    turn = 0.3 * (2 * draw - 1)
    wanted = (
        np.array(
            [
                [
                    colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
                    for hue, saturation, value in (colorsys.rgb_to_hsv(*pixel) for pixel in row)
                ]
                for row in image / 255
            ]
        )
        * 255
    )
    difference = np.abs(changed(image, [draw] * 4, hue=0.3) - wanted)
    assert difference.mean() < 1.5  # hues have 256 steps
    assert difference.max() < 8


def test_changes_come_in_the_order_drawn():
    image, draws = picture(16, 16), [0.9, 0.9, 0.1, 0.9]
    amounts = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
    for order in ([0.1, 0.5, 0.9, 0.3], [0.5, 0.9, 0.1, 0.3], [0.9, 0.1, 0.5, 0.3]):
        by_pillow = Image.fromarray(image)
        for name in np.array([*ENHANCERS])[np.argsort(order[:3])]:
            draw = draws[[*ENHANCERS].index(name)]
            by_pillow = ENHANCERS[name](by_pillow).enhance(1 + 0.4 * (2 * draw - 1))
        assert np.abs(changed(image, draws, order, **amounts).astype(int) - np.asarray(by_pillow)).max() <= 4
    one, other = (changed(image, draws, order, **amounts).astype(int) for order in (IN_ORDER, IN_ORDER[::-1]))
    assert np.abs(one - other).max() > 4


def test_padding_counts_for_nothing():
    """The mean gray of the contrast is that of the valid area, and padding stays black."""
    image, jitter, seed = picture(12, 20), ColorJitter(), tf.constant([5, 6])
    padded = np.pad(image, ((0, 8), (0, 3), (0, 0)))
    found = jitter(tf.constant(padded), tf.constant([12, 20]), seed).numpy()
    np.testing.assert_array_equal(found[:12, :20], jitter(tf.constant(image), tf.constant([12, 20]), seed))
    assert not found[12:].any()
    assert not found[:, 20:].any()
