"""Resize rules against the reference, torchvision's rule and PIL; and reading images."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from test_augmentation import encoded, picture

from dataset.input.resize import fit_within, host_resize, letterbox, stretch
from dataset.records.schema import decode_image, image_size
from program_support.errors import InputError

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def test_letterbox_equals_the_reference(golden_folder):
    golden = np.load(golden_folder / "forward_efficientdet-d0.npz")
    for i in range(2):
        image, size, scale = letterbox((256, 256))(tf.constant(golden[f"image{i}"]))
        height, width = golden[f"image{i}"].shape[:2]
        np.testing.assert_allclose(scale, (height / size[0], width / size[1]), rtol=1e-6)
        # The reference has one number for both sides, true to a pixel of the input.
        np.testing.assert_allclose(scale, golden["image_scales"][[i, i]], rtol=1 / min(size[0], size[1]))
        inside = np.zeros((256, 256, 1), bool)
        inside[: size[0], : size[1]] = True
        normalized = (image.numpy() / np.float32(255) - MEAN) / STD * inside
        assert np.abs((normalized - golden["network_input"][i]) * STD * 255).max() < 0.51
        assert (golden["network_input"][i][~inside[..., 0]] == 0).all()


def test_where_torchvisions_float64_rounds_otherwise():
    """The counts of docs/reference/detectors.md: the shorter side that is meant to be 800."""
    rule, sides = host_resize(fit_within()), range(1, 2000)
    theirs, ours = (
        [math.floor(side * (800 / side)) for side in sides],
        [rule.scaled_size((side, side))[0] for side in sides],
    )
    assert (theirs.count(799), ours.count(799), sum(np.not_equal(theirs, ours))) == (85, 98, 169)
    assert set(theirs + ours) == {799, 800}


@pytest.mark.parametrize(
    ("source", "scaled"),  # torchvision's GeneralizedRCNNTransform(800, 1333), its rounding errors aside
    [
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((427, 640), (800, 1199)),
        ((375, 500), (800, 1066)),
        ((100, 1000), (133, 1333)),
        ((3000, 100), (1333, 44)),
        ((800, 1333), (800, 1333)),
        ((1, 1), (800, 800)),
    ],
)
def test_fit_within_is_the_rule_of_mask_r_cnn(source, scaled):
    rule = fit_within()
    assert rule.size == (1344, 1344)
    image, extent, scale = rule(tf.fill([*source, 3], tf.constant(200, tf.uint8)))
    assert tuple(extent.numpy()) == scaled
    expected = np.zeros((1344, 1344, 3), np.uint8)
    expected[: scaled[0], : scaled[1]] = 200
    np.testing.assert_array_equal(image, expected)
    np.testing.assert_allclose(scale, np.divide(source, scaled), rtol=1e-6)


def test_antialiasing_averages_what_a_pixel_covers():
    image = picture(90, 120)
    smooth = stretch((30, 40), antialias=True)(tf.constant(image))[0].numpy().astype(int)
    by_pillow = np.asarray(Image.fromarray(image).resize((40, 30), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(smooth - by_pillow).max() <= 1
    plain = stretch((30, 40))(tf.constant(image))[0].numpy().astype(int)
    assert np.abs(plain - by_pillow).max() > 1


def test_the_published_input_of_ssd(golden_folder):
    golden = np.load(golden_folder / "families" / "ssd_transform.npz")
    for number in range(2):
        stretched, extent, _ = stretch((300, 300), antialias=True)(tf.constant(golden[f"image{number}"]))
        assert np.abs(stretched.numpy().astype(int) - golden[f"resized{number}"]).max() <= 1
        assert extent.numpy().tolist() == [300, 300]


def test_without_half_pixel_centers_the_first_pixel_stays():
    image = np.repeat(np.uint8([[0, 100], [0, 100]])[..., None], 3, axis=-1)
    resized = letterbox((4, 4), half_pixel_centers=False)(tf.constant(image))[0]
    np.testing.assert_array_equal(resized[0, :, 0], [0, 50, 100, 100])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fit_within(10, 9), "fit with size .*, sides 10 and 9; expected all above zero"),
        (lambda: fit_within(0, 9), "sides 0 and 9"),
    ],
)
def test_wrong_rules_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


# --- reading


def test_image_size_without_decoding():
    gray = np.zeros((7, 9), np.uint8)
    for data in (encoded(picture(7, 9), "jpeg"), encoded(picture(7, 9)), encoded(gray, "jpeg"), encoded(gray)):
        assert image_size(tf.constant(data)).numpy().tolist() == [7, 9]
        assert decode_image(tf.constant(data)).shape == (7, 9, 3)
    header = encoded(picture(300, 400), "jpeg")[:800]  # no pixel in it
    assert image_size(tf.constant(header)).numpy().tolist() == [300, 400]
