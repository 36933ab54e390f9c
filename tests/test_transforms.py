import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from dataset.input import transforms
from dataset.input.transforms import Crop

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])


def picture(height, width, seed=0):
    """Smooth colours with some grain: [h, w, 3] uint8."""
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
    """The image at these source coordinates (pixel centres at whole numbers), borders repeated: float64."""

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


# --- letterbox


def test_letterbox_equals_the_reference(golden_folder):
    golden = np.load(golden_folder / "forward_efficientdet-d0.npz")
    for i in range(2):
        image, size, scale = transforms.letterbox(tf.constant(golden[f"image{i}"]), (256, 256))
        height, width = golden[f"image{i}"].shape[:2]
        np.testing.assert_allclose(scale, (height / size[0], width / size[1]), rtol=1e-6)
        # The reference has one number for both sides, true to a pixel of the input.
        np.testing.assert_allclose(scale, golden["image_scales"][[i, i]], rtol=1 / min(size[0], size[1]))
        inside = np.zeros((256, 256, 1), bool)
        inside[: size[0], : size[1]] = True
        normalised = (image.numpy() / np.float32(255) - MEAN) / STD * inside
        assert np.abs((normalised - golden["network_input"][i]) * STD * 255).max() < 0.51
        assert (golden["network_input"][i][~inside[..., 0]] == 0).all()


@pytest.mark.parametrize(
    ("source", "size", "scaled"),
    [((2, 4), (4, 4), (2, 4)), ((30, 40), (64, 64), (48, 64)), ((40, 30), (64, 96), (64, 48)),
     ((1, 1), (8, 8), (8, 8)), ((2000, 2), (64, 64), (64, 1)), ((3, 2000), (64, 64), (1, 64))],
)
def test_letterbox_places_the_whole_image(source, size, scaled):
    image = np.full((*source, 3), 200, np.uint8)
    boxed, extent, scale = transforms.letterbox(tf.constant(image), size)
    assert boxed.dtype == tf.uint8
    assert tuple(extent.numpy()) == scaled
    expected = np.zeros((*size, 3), np.uint8)
    expected[: scaled[0], : scaled[1]] = 200
    np.testing.assert_array_equal(boxed, expected)
    np.testing.assert_allclose(scale, [source[0] / scaled[0], source[1] / scaled[1]], rtol=1e-6)


def test_letterbox_interpolates_at_half_pixels():
    image = np.repeat(np.uint8([[0, 100], [0, 100]])[..., None], 3, axis=-1)
    boxed, _, _ = transforms.letterbox(tf.constant(image), (4, 4))
    np.testing.assert_array_equal(boxed[0, :, 0], [0, 25, 75, 100])


def test_letterbox_serves_images_of_any_size_in_one_graph():
    program = tf.function(
        lambda image: transforms.letterbox(image, (32, 48)), input_signature=[tf.TensorSpec([None, None, 3], tf.uint8)])
    for height, width in ((10, 90), (90, 10), (32, 48)):
        boxed, extent, _ = program(tf.constant(picture(height, width)))
        assert boxed.shape == (32, 48, 3)
        assert (boxed.numpy()[extent[0] :] == 0).all()


# --- reading


def test_image_size_without_decoding():
    grey = np.zeros((7, 9), np.uint8)
    for data in (encoded(picture(7, 9), "jpeg"), encoded(picture(7, 9)), encoded(grey, "jpeg"), encoded(grey)):
        assert transforms.image_size(tf.constant(data)).numpy().tolist() == [7, 9]
        assert transforms.decode_image(tf.constant(data)).shape == (7, 9, 3)
    header = encoded(picture(300, 400), "jpeg")[:800]  # no pixel in it
    assert transforms.image_size(tf.constant(header)).numpy().tolist() == [300, 400]


# --- crop

GREY_LEVEL = 0.9  # the crop's interpolation is OpenCV's, in integers: the last of them may be the neighbour of the nearest


def test_crop_resamples_the_window_alone():
    source = picture(60, 80)
    for seed in range(12):
        drawn = transforms.draw_crop(
            tf.constant([60, 80]), size=(48, 48), jitter=(0.1, 2.5), flip_probability=0.5, seed=tf.constant([1, seed]))
        result = transforms.crop_image(tf.constant(encoded(source)), drawn, size=(48, 48)).numpy()
        (top, left), (rows, columns), (height, width) = (v.numpy() for v in drawn[:3])
        expected = bilinear(
            source[top : top + rows, left : left + columns],
            rows=half_pixel(start=0, length=rows, count=height),
            columns=half_pixel(start=0, length=columns, count=width),
        )
        if drawn.flip:
            expected = expected[:, ::-1]
        assert np.abs(result[:height, :width] - expected).max() < GREY_LEVEL
        assert (result[height:] == 0).all()
        assert (result[:, width:] == 0).all()


@pytest.mark.parametrize(
    ("scaled", "offset", "window"), [((120, 160), (10, 20), (24, 24)), ((30, 40), (2, 4), (32, 32))])
def test_crop_equals_resizing_all_and_cutting(scaled, offset, window):
    """Where the window is commensurate; the outermost pixel aside, whose neighbour outside the window is not read."""
    source, ratio = picture(60, 80), scaled[0] / 60
    size = tuple(int(side * ratio) for side in window)
    whole = tf.image.resize(source, scaled).numpy()
    top, left = (int(start * ratio) for start in offset)
    expected = whole[top : top + size[0], left : left + size[1]]
    plan = crop(offset=offset, window=window, size=size)
    result = transforms.crop_image(tf.constant(encoded(source)), plan, size=size).numpy()
    assert np.abs(result - expected)[1:-1, 1:-1].max() < GREY_LEVEL


def test_jpeg_window_equals_the_whole_jpeg_but_for_the_chroma_at_its_border():
    source = encoded(picture(200, 300), "jpeg", quality=90)
    whole = tf.io.decode_jpeg(source, channels=3).numpy()
    for offset, window in (((0, 0), (200, 300)), ((33, 51), (90, 120)), ((150, 250), (50, 50)), ((199, 299), (1, 1))):
        plan = crop(offset=offset, window=window, size=window)
        result = transforms.crop_image(tf.constant(source), plan, size=window).numpy().astype(int)
        difference = np.abs(result - whole[offset[0] :, offset[1] :][: window[0], : window[1]]).max(axis=-1)
        assert difference.max() <= 8
        assert (difference > 1).mean() < 0.01 or window == (1, 1)


def test_real_jpegs_are_cropped_like_their_whole(data_folder):
    paths = sorted((data_folder / "bccd" / "images").glob("*.jpg"))[:6]
    assert paths
    for number, path in enumerate(paths):
        data = path.read_bytes()
        drawn = transforms.draw_crop(transforms.image_size(data), size=(256, 256), jitter=(0.1, 2.0),
                                     flip_probability=0.5, seed=tf.constant([3, number]))
        png = encoded(tf.io.decode_jpeg(data, channels=3).numpy())
        direct, by_whole = (
            transforms.crop_image(tf.constant(source), drawn, size=(256, 256)).numpy().astype(int)
            for source in (data, png))
        assert (np.abs(direct - by_whole) > 1).mean() < 0.005


def test_drawn_crops_follow_the_reference():
    """efficientdet.md 5.3, from the same draws: sizes are the reference's, windows its windows to half a pixel."""
    source, size = np.array([120, 160]), np.array([64, 96])
    flips, starts = [], []
    for number in range(200):
        seed = tf.constant([9, number])
        r = np.float32(0.1) + np.float32(1.9) * tf.random.stateless_uniform([4], seed=seed).numpy()[0]
        drawn = transforms.draw_crop(
            tf.constant([120, 160]), size=(64, 96), jitter=(0.1, 2.0), flip_probability=0.5, seed=seed)
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
        drawn = transforms.draw_crop(transforms.image_size(data), size=(32, 32), jitter=(0.01, 2.0),
                                     flip_probability=0.5, seed=tf.constant([0, number]))
        result = transforms.crop_image(data, drawn, size=(32, 32)).numpy()
        height, width = drawn.size.numpy()
        assert min(height, width) >= 1
        assert (np.abs(result[:height, :width].astype(int) - 77) <= 2).all()
        boxes, kept = transforms.crop_boxes(tf.constant([[0.0, 0.0, 1.0, 1.0]]), drawn, source_size=tf.constant(source))
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
        drawn = transforms.draw_crop(tf.constant([100, 130]), size=(96, 96), jitter=(0.5, 3.0),
                                     flip_probability=float(flip), seed=tf.constant([5, seed]))
        box = np.float32([[top / 100, left / 130, (top + rows) / 100, (left + columns) / 130]])
        moved, kept = transforms.crop_boxes(tf.constant(box), drawn, source_size=tf.constant([100, 130]))
        image = transforms.crop_image(tf.constant(encoded(source)), drawn, size=(96, 96)).numpy()
        y, x = np.nonzero(image[..., 0] >= 128)
        if len(y) > 4:
            assert kept.numpy().all()
            np.testing.assert_allclose(moved[0], [y.min(), x.min(), y.max() + 1, x.max() + 1], atol=0.51)


def test_boxes_by_hand():
    plan = crop(offset=(10, 20), window=(40, 50), size=(80, 100))
    boxes = tf.constant([
        [0.2, 0.3, 0.4, 0.5],    # inside: 20..40, 30..50 px -> 20..60, 20..60
        [0.0, 0.0, 1.0, 1.0],    # all of the image: clipped to the crop, whose far edges are 80 and 100, not 79 and 99
        [0.0, 0.0, 0.103, 1.0],  # 0.3 px of it are in the window: a sliver of 0.6 input px
        [0.0, 0.0, 0.1, 0.2],    # touches the corner
        [0.6, 0.8, 0.9, 0.9],    # outside
        [0.2, 0.3, 0.204, 0.5],  # 0.4 px high in the original and not cut
        [0.2, 0.3, 0.2, 0.5],    # no area
    ])
    moved, kept = transforms.crop_boxes(boxes, plan, source_size=tf.constant([100, 100]))
    assert kept.numpy().tolist() == [True, True, False, False, False, True, False]
    np.testing.assert_allclose(moved[:2], [[20, 20, 60, 60], [0, 0, 80, 100]], atol=1e-4)
    mirrored, kept_too = transforms.crop_boxes(
        boxes, plan._replace(flip=tf.constant(True)), source_size=tf.constant([100, 100]))
    np.testing.assert_allclose(mirrored[0], [20, 40, 60, 80], atol=1e-4)
    np.testing.assert_array_equal(kept, kept_too)


def test_no_boxes_give_no_boxes():
    plan = crop(offset=(0, 0), window=(5, 5), size=(8, 8))
    boxes, kept = transforms.crop_boxes(tf.zeros([0, 4]), plan, source_size=tf.constant([5, 5]))
    assert boxes.shape == (0, 4)
    assert kept.shape == (0,)
