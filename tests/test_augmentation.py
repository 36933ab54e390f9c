import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from dataset.input.augmentation import ResizeAndFlip, ScaleJitterCrop
from dataset.input.crop import Crop, crop_boxes, crop_image
from dataset.input.resize import stretch
from dataset.records.schema import image_size


def picture(height, width, seed=0):
    """Smooth colors with some grain: [h, w, 3] uint8."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (6, 6, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return np.clip(smooth + random.normal(0, 4, (height, width, 1)), 0, 255).astype(np.uint8)


def encoded(image, kind="png", **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def crop(*, offset, window, size, flip=False):
    return Crop(tf.constant(offset), tf.constant(window), tf.constant(size), tf.constant(flip))


def bilinear(image, *, rows, columns):
    """The image at these source coordinates (pixel centers at whole numbers), borders repeated: float64."""

    def along(values, places):
        places = np.clip(places, 0, len(values) - 1)
        low = np.minimum(places.astype(int), max(len(values) - 2, 0))
        high = np.minimum(low + 1, len(values) - 1)
        share = (places - low)[:, None, None]
        return values[low] * (1 - share) + values[high] * share

    half = along(image.astype(np.float64), rows)
    return along(half.swapaxes(0, 1), columns).swapaxes(0, 1)


def half_pixel(*, start, length, count):
    """Source coordinates of `count` pixels that share `length` source pixels."""
    return start + (np.arange(count) + 0.5) * length / count - 0.5


# --- crop

GRAY_LEVEL = (
    0.9  # the crop's interpolation is OpenCV's, in integers: the last of them may be the neighbor of the nearest
)


def test_crop_resamples_the_window_alone():
    source = picture(60, 80)
    for seed in range(12):
        drawn = ScaleJitterCrop((48, 48), 0.1, 2.5).draw(tf.constant([60, 80]), tf.constant([1, seed]))
        result = crop_image(tf.constant(encoded(source)), drawn, size=(48, 48)).numpy()
        (top, left), (rows, columns), (height, width) = (v.numpy() for v in drawn[:3])
        expected = bilinear(
            source[top : top + rows, left : left + columns],
            rows=half_pixel(start=0, length=rows, count=height),
            columns=half_pixel(start=0, length=columns, count=width),
        )
        if drawn.flip:
            expected = expected[:, ::-1]
        assert np.abs(result[:height, :width] - expected).max() < GRAY_LEVEL
        assert (result[height:] == 0).all()
        assert (result[:, width:] == 0).all()


def test_jpeg_window_equals_the_whole_jpeg_but_for_the_chroma_at_its_border():
    source = encoded(picture(200, 300), "jpeg", quality=90)
    whole = tf.io.decode_jpeg(source, channels=3).numpy()
    for offset, window in (((0, 0), (200, 300)), ((33, 51), (90, 120)), ((150, 250), (50, 50)), ((199, 299), (1, 1))):
        plan = crop(offset=offset, window=window, size=window)
        result = crop_image(tf.constant(source), plan, size=window).numpy().astype(int)
        difference = np.abs(result - whole[offset[0] :, offset[1] :][: window[0], : window[1]]).max(axis=-1)
        assert difference.max() <= 8
        assert (difference > 1).mean() < 0.01 or window == (1, 1)


def test_drawn_crops_follow_the_reference():
    """efficientdet.md 5.3, from the same draws: sizes are the reference's, windows its windows to half a pixel."""
    source, size = np.array([120, 160]), np.array([64, 96])
    flips, starts = [], []
    for number in range(200):
        seed = tf.constant([9, number])
        r = np.float32(0.1) + np.float32(1.9) * tf.random.stateless_uniform([4], seed=seed).numpy()[0]
        drawn = ScaleJitterCrop((64, 96)).draw(tf.constant([120, 160]), seed)
        target = (r * size).astype(int)
        scale = (target.astype(np.float32) / source.astype(np.float32)).min()
        scaled = np.maximum((source.astype(np.float32) * scale).astype(int), 1)
        np.testing.assert_array_equal(drawn.size, np.minimum(scaled, size))
        exact_window = drawn.size.numpy() / scaled * source
        assert (np.abs(drawn.window.numpy() - exact_window) <= 0.5001).all()
        room = source - drawn.window.numpy()
        assert (drawn.offset.numpy() >= 0).all()
        assert (drawn.offset.numpy() <= room).all()
        starts += (drawn.offset.numpy()[room > 20] / room[room > 20]).tolist()
        flips.append(bool(drawn.flip))
    assert 70 < sum(flips) < 130
    assert np.histogram(starts, bins=4, range=(0, 1))[0].min() > 0.15 * len(starts)


@pytest.mark.parametrize("source", [(1, 1), (2000, 2), (2, 2000), (3, 3)])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_degenerate_images_are_cropped(source, kind):
    data = tf.constant(encoded(np.full((*source, 3), 77, np.uint8), kind))
    for number in range(8):
        drawn = ScaleJitterCrop((32, 32), 0.01).draw(image_size(data), tf.constant([0, number]))
        result = crop_image(data, drawn, size=(32, 32)).numpy()
        height, width = drawn.size.numpy()
        assert min(height, width) >= 1
        assert (np.abs(result[:height, :width].astype(int) - 77) <= 2).all()
        boxes, kept = crop_boxes(tf.constant([[0.0, 0.0, 1.0, 1.0]]), drawn, source_size=tf.constant(source))
        np.testing.assert_allclose(boxes, [[0, 0, height, width]])
        assert kept.numpy().tolist() == [True]


# --- boxes


@pytest.mark.parametrize("flip", [False, True])
def test_boxes_stay_on_their_objects(flip):
    """A white rectangle is found again where its box says, to the pixel."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        top, left = random.integers(10, 50, 2)
        rows, columns = random.integers(20, 40, 2)
        source = np.zeros((100, 130, 3), np.uint8)
        source[top : top + rows, left : left + columns] = 255
        drawn = ScaleJitterCrop((96, 96), 0.5, 3.0, float(flip)).draw(tf.constant([100, 130]), tf.constant([5, seed]))
        box = np.float32([[top / 100, left / 130, (top + rows) / 100, (left + columns) / 130]])
        moved, kept = crop_boxes(tf.constant(box), drawn, source_size=tf.constant([100, 130]))
        image = crop_image(tf.constant(encoded(source)), drawn, size=(96, 96)).numpy()
        y, x = np.nonzero(image[..., 0] >= 128)
        if len(y) > 4:
            assert kept.numpy().all()
            np.testing.assert_allclose(moved[0], [y.min(), x.min(), y.max() + 1, x.max() + 1], atol=0.51)


def test_boxes_by_hand():
    plan = crop(offset=(10, 20), window=(40, 50), size=(80, 100))
    boxes = tf.constant(
        [
            [0.2, 0.3, 0.4, 0.5],  # inside: 20..40, 30..50 px -> 20..60, 20..60
            [
                0.0,
                0.0,
                1.0,
                1.0,
            ],  # all of the image: clipped to the crop, whose far edges are 80 and 100, not 79 and 99
            [0.0, 0.0, 0.103, 1.0],  # 0.3 px of it are in the window: a sliver of 0.6 input px
            [0.0, 0.0, 0.1, 0.2],  # touches the corner
            [0.6, 0.8, 0.9, 0.9],  # outside
            [0.2, 0.3, 0.204, 0.5],  # 0.4 px high in the original and not cut
            [0.2, 0.3, 0.2, 0.5],  # no area
        ]
    )
    moved, kept = crop_boxes(boxes, plan, source_size=tf.constant([100, 100]))
    assert kept.numpy().tolist() == [True, True, False, False, False, True, False]
    np.testing.assert_allclose(moved[:2], [[20, 20, 60, 60], [0, 0, 80, 100]], atol=1e-4)
    mirrored, kept_too = crop_boxes(boxes, plan._replace(flip=tf.constant(True)), source_size=tf.constant([100, 100]))
    np.testing.assert_allclose(mirrored[0], [20, 40, 60, 80], atol=1e-4)
    np.testing.assert_array_equal(kept, kept_too)


# --- the image as evaluation sees it, perhaps mirrored


def test_resize_and_flip_shows_what_evaluation_does():
    source, flips = picture(60, 80), []
    rule = stretch((48, 40))
    whole = rule(tf.constant(source))[0].numpy()
    augmentation = ResizeAndFlip(rule)
    for number in range(40):
        drawn = augmentation.draw(tf.constant([60, 80]), tf.constant([1, number]))
        flips.append(bool(drawn.flip))
        seen = augmentation.image(tf.constant(encoded(source)), drawn).numpy().astype(int)
        assert (
            np.abs(seen - (whole[:, ::-1] if drawn.flip else whole)).max() <= 1
        )  # a gray level in the middle rounds up
        boxes, kept = augmentation.boxes(tf.constant([[0.5, 0.25, 1.0, 0.5]]), drawn, source_size=tf.constant([60, 80]))
        np.testing.assert_allclose(boxes, [[24, 20, 48, 30]] if drawn.flip else [[24, 10, 48, 20]], atol=1e-4)
        assert kept.numpy().tolist() == [True]
    assert 10 < sum(flips) < 30
    assert flips == [
        bool(augmentation.draw(tf.constant([7, 9]), tf.constant([1, number])).flip) for number in range(40)
    ]
