"""RoIAlign against torchvision's and against a loop over samples, by gathering and by a sparse matrix."""

import numpy as np
import pytest
import tensorflow as tf

from efficientdet.plugins.mask_rcnn.region_layers import weighted_sums
from efficientdet.plugins.mask_rcnn.roi_align import features_of_regions, gathered_sums, region_levels

YX = [1, 0, 3, 2]


def on_device(*values):
    """By what this device and program have."""
    return weighted_sums()(*values)


WAYS = pytest.mark.parametrize("sums", [gathered_sums, on_device])
SIZE, SHAPES = (32, 48), [(8, 12), (4, 6)]
BOXES = np.float32(
    [
        [[3.3, 4.1, 20.7, 30.2], [0, 0, 32, 48], [-9, -9, 12, 10], [20, 30, 60, 90], [5, 5, 5.5, 5.2], [0, 0, 0, 0]],
        [[1, 2, 3, 40], [0, 11, 31, 12], [31.5, 47.5, 32, 48], [2, 2, 30, 46], [40, 60, 44, 64], [7.5, 8.25, 16, 24]],
    ]
)


def roi_align(levels, boxes, **settings):
    """Return the features of the boxes [B, N, 4] of each image: [B, N, size, size, C]."""
    count = boxes.shape[1]
    images = tf.range(tf.shape(boxes)[0] * count) // count
    pooled = features_of_regions(levels, tf.reshape(boxes, (-1, 4)), images, **settings)
    return tf.reshape(pooled, (-1, count, *pooled.shape[1:]))


def drawn_levels(channels=3):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, *shape, channels)).astype(np.float32) for shape in SHAPES]


def by_hand(levels, boxes, size):
    """A sample at a time in float64, of small boxes only: all from the first level."""
    features, stride = levels[0].astype(np.float64), SIZE[0] / SHAPES[0][0]
    rows, columns = SHAPES[0]
    pooled = np.zeros((*boxes.shape[:2], size, size, features.shape[-1]))
    for image, number, i, j in np.ndindex(pooled.shape[:4]):
        top, left, bottom, right = boxes[image, number].astype(np.float64) / stride
        height, width = max(bottom - top, 1), max(right - left, 1)
        for a, b in np.ndindex(2, 2):
            y, x = top + (i + (a + 0.5) / 2) * height / size, left + (j + (b + 0.5) / 2) * width / size
            if -1 <= y <= rows and -1 <= x <= columns:
                y, x = min(max(y, 0), rows - 1), min(max(x, 0), columns - 1)
                for row, column in ((int(y) + c, int(x) + d) for c in (0, 1) for d in (0, 1)):
                    weight = max(1 - abs(y - row), 0) * max(1 - abs(x - column), 0)
                    if weight:
                        pooled[image, number, i, j] += weight * features[image, row, column] / 4
    return pooled


@WAYS
def test_the_published_features(golden_folder, sums):
    golden = np.load(golden_folder / "families" / "maskrcnn_roi_align.npz")
    levels = [tf.constant(golden[f"p{level}"].transpose(0, 2, 3, 1)) for level in (2, 3, 4, 5)]
    boxes = tf.constant(np.stack([golden["boxes0"], golden["boxes1"]])[..., YX])
    np.testing.assert_array_equal(np.ravel(region_levels(boxes, finest=2, count=4)), golden["levels"])
    image_size = [4 * side for side in levels[0].shape[1:3]]
    for size in (7, 14):
        pooled = tf.function(roi_align, autograph=False)(
            levels, boxes, size=size, image_size=image_size, weighted_sums=sums
        )
        np.testing.assert_allclose(
            np.asarray(pooled).reshape(-1, size, size, 4).transpose(0, 3, 1, 2), golden[f"pooled{size}"], atol=1e-4
        )


@WAYS
@pytest.mark.parametrize("compiled", [False, True])
def test_value_and_gradient_against_the_loop(sums, compiled):
    levels, size = drawn_levels(), 3
    outer = np.random.default_rng(1).normal(size=(2, 6, size, size, 3)).astype(np.float32)

    @tf.function(jit_compile=compiled, autograph=False)
    def value_and_gradients(boxes, *levels):
        with tf.GradientTape() as tape:
            tape.watch([boxes, *levels])
            pooled = roi_align(levels, boxes, size=size, image_size=SIZE, weighted_sums=sums)
            total = tf.reduce_sum(pooled * outer)
        return pooled, *tape.gradient(total, [boxes, *levels])

    pooled, of_boxes, *of_levels = value_and_gradients(BOXES, *levels)
    wanted = by_hand(levels, BOXES, size)
    np.testing.assert_allclose(pooled, wanted, atol=1e-5)
    assert of_boxes is None
    assert not np.asarray(of_levels[1]).any()  # no box is large enough for it
    # Linear in the features, so that a difference over any distance is the slope
    for place in [(0, 0, 0, 1), (0, 3, 5, 0), (0, 7, 11, 2), (1, 2, 3, 1), (1, 7, 11, 0), (1, 0, 3, 2)]:
        changed = levels[0].copy()
        changed[place] += 1
        slope = np.sum((by_hand([changed], BOXES, size) - wanted) * outer)
        np.testing.assert_allclose(np.asarray(of_levels[0])[place], slope, atol=1e-4)


@WAYS
def test_half_precision_is_summed_in_single(sums):
    levels = [tf.cast(level, tf.bfloat16) for level in drawn_levels()]
    pooled = roi_align(levels, tf.constant(BOXES), size=2, image_size=SIZE, weighted_sums=sums)
    assert pooled.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(pooled, tf.float32), by_hand([np.float32(level) for level in levels], BOXES, 2), rtol=2**-8, atol=1e-6
    )


@WAYS
@pytest.mark.parametrize("compiled", [False, True])
def test_no_region_at_all(sums, compiled):
    """As in images that nothing is found in; TensorFlow's product with an empty matrix would end the process."""
    rows, numbers, weights = tf.ones((5, 3)), tf.zeros((0, 4), tf.int32), tf.zeros((0, 4))

    @tf.function(jit_compile=compiled, autograph=False)
    def value_and_gradient(rows, numbers, weights):
        with tf.GradientTape() as tape:
            tape.watch(rows)
            found = sums(rows, numbers, weights)
        return found, tf.convert_to_tensor(tape.gradient(found, rows))

    found, slope = value_and_gradient(rows, numbers, weights)
    assert found.shape == (0, 3)
    np.testing.assert_array_equal(slope, np.zeros((5, 3)))


def test_an_open_batch():
    def pool(boxes, *levels):
        return roi_align(levels, boxes, size=2, image_size=SIZE, weighted_sums=on_device)

    levels = drawn_levels()
    open_batch = [tf.TensorSpec((None, *array.shape[1:])) for array in (BOXES, *levels)]
    pooled = tf.function(pool, input_signature=open_batch)(BOXES, *levels)
    np.testing.assert_allclose(pooled, by_hand(levels, BOXES, 2), atol=1e-5)
