import numpy as np
import pytest

from efficientdet.reports.drawing import PALETTE_SIZE, class_color, draw_detections


def plain_image(height, width, value=128):
    return np.full((height, width, 3), value, np.uint8)


def test_a_box_without_room_for_a_label_by_hand():
    image = plain_image(20, 30)
    drawn = draw_detections(image, [[5.0, 10.0, 15.0, 28.0]], classes=[3], names="abcd", scores=[0.5])
    wanted = image.copy()
    wanted[5:15, 10:28] = class_color(3)
    wanted[6:14, 11:27] = 128
    np.testing.assert_array_equal(drawn, wanted)
    assert (image == 128).all()


def test_a_large_image_has_a_broader_line_with_a_rim():
    drawn = draw_detections(plain_image(960, 1200), [[100, 200, 800, 1100]], classes=[0], names=["a"])
    across = [tuple(drawn[500, x].tolist()) for x in range(195, 210)]
    assert across == [(128,) * 3] * 4 + [(0,) * 3] + [class_color(0)] * 4 + [(0,) * 3] + [(128,) * 3] * 5


def test_the_label_has_the_color_of_the_box_and_text_on_it():
    drawn = draw_detections(
        plain_image(300, 400), [[100, 100, 200, 300]], classes=[1], names=["cat", "dog"], scores=[0.87]
    )
    above = drawn[89:98, 102:138].reshape(-1, 3)  # within the label
    assert (above == class_color(1)).all(axis=-1).mean() > 0.3
    assert above[:, 1].min() < 64


@pytest.mark.parametrize(
    "box", [(-50, -50, 40, 40), (260, 350, 400, 500), (0, 0, 300, 400), (-9, 380, 20, 900), (299, 0, 300, 1)]
)
def test_labels_stay_inside(box):
    """A label at the edge covers nearly as many pixels as one in the middle."""

    def label_pixels(box):
        image = plain_image(300, 400)
        named, plain = (draw_detections(image, [box], classes=[0], names=[name]) for name in ("a name", ""))
        return (named != plain).any(axis=-1).sum()

    assert label_pixels(box) > 0.7 * label_pixels((100, 100, 200, 300))


def test_labels_avoid_each_other():
    """The label of a box within another is in it, where the one above the other would hide it."""
    box, names = [100, 100, 200, 300], ["first", "other"]
    drawn = draw_detections(plain_image(300, 400), [box, box], classes=[0, 1], names=names, scores=[0.9, 0.5])
    for rows, color in ((slice(86, 99), 0), (slice(103, 112), 1)):
        assert (drawn[rows, 104:138] == class_color(color)).all(axis=-1).mean() > 0.3


@pytest.mark.parametrize(
    "boxes",
    [
        np.zeros((0, 4)),
        [[50, 50, 50, 80]],
        [[60, 60, 50, 50]],
        [[-20, 5, -10, 50]],
        [[5, 500, 50, 600]],
        [[np.nan, 0, 50, 50]],
        [[0, 0, np.inf, 50]],
    ],
)
def test_what_has_nothing_to_draw(boxes):
    image = plain_image(120, 160)
    count = len(boxes)
    drawn = draw_detections(image, boxes, classes=[0] * count, names=["a"], scores=[0.5] * count)
    np.testing.assert_array_equal(drawn, image)
    assert not np.shares_memory(drawn, image)


@pytest.mark.parametrize("name", ["", "größe", "細胞 кот", "two\nlines\ttab", "x" * 300, "🐈", "\x00", "a" * 100_000])
@pytest.mark.parametrize("size", [(1, 1), (3, 200), (128, 96)])
def test_any_name_on_any_size(name, size):
    generator = np.random.default_rng(0)
    boxes = generator.uniform(-20, 150, (12, 4))
    boxes[:, 2:] = boxes[:, :2] + generator.uniform(0, 100, (12, 2))
    drawn = draw_detections(plain_image(*size), boxes, classes=[0] * 12, names=[name], scores=generator.random(12))
    assert drawn.shape == (*size, 3)
    assert drawn.dtype == np.uint8


def test_the_best_is_drawn_last():
    boxes = [[100, 100, 200, 300], [100, 100, 200, 300]]
    for scores, winner in (([0.9, 0.3], 0), ([0.3, 0.9], 1)):
        drawn = draw_detections(plain_image(300, 400), boxes, classes=[0, 1], names="ab", scores=scores)
        assert tuple(drawn[150, 100]) == class_color(winner)


def test_colors_are_stable_and_distinct():
    assert [class_color(index) for index in (0, 1, 2)] == [(255, 51, 51), (0, 255, 0), (34, 34, 255)]
    assert class_color(PALETTE_SIZE + 4) == class_color(4)
    assert len({class_color(index) for index in range(PALETTE_SIZE)}) == PALETTE_SIZE


@pytest.mark.parametrize(
    ("image", "boxes", "classes", "message"),
    [
        (plain_image(9, 9).astype(np.float32), [], [], "expected uint8"),
        (plain_image(9, 9)[..., :1], [], [], "expected uint8"),
        (plain_image(0, 9), [], [], "expected uint8"),
        (plain_image(9, 9), [[0, 0, 5, 5]], [-1], "there are 2 names"),
        (plain_image(9, 9), [[0, 0, 5, 5]], [2], "there are 2 names"),
    ],
)
def test_invalid_arguments_are_refused(image, boxes, classes, message):
    with pytest.raises(ValueError, match=message):
        draw_detections(image, boxes, classes=classes, names="ab")


def test_masks_are_tinted_and_outlined_beneath_the_boxes():
    image = plain_image(20, 30)
    mask = np.zeros((20, 30), bool)
    mask[7:12, 13:20] = True
    box = [[5.0, 10.0, 15.0, 28.0]]
    drawn = draw_detections(image, box, classes=[3], names="abcd", scores=[0.5], masks=[mask])
    wanted = draw_detections(image, box, classes=[3], names="abcd", scores=[0.5]).copy()
    wanted[7:12, 13:20] = class_color(3)
    wanted[8:11, 14:19] = np.round(128 + 0.45 * (np.array(class_color(3)) - 128))
    np.testing.assert_array_equal(drawn, wanted)
    assert (image == 128).all()


def test_masks_of_neighbors_have_an_edge_between_them():
    """Of one class and of any shape: each pixel within the width of a line of the mask's edge has the pure color."""
    image, (height, width) = plain_image(960, 1200), (960, 1200)
    y, x = np.mgrid[:height, :width]
    discs = [np.hypot(y - 400, x - center) <= 200 for center in (300, 701)]
    drawn = draw_detections(image, [[100, 50, 700, 950]] * 2, classes=[0, 0], names=["a"], masks=discs)
    pure = (drawn == class_color(0)).all(axis=-1)
    assert pure[400, 499:503].all()  # two outlines of two pixels
    for disc, center in zip(discs, (300, 701), strict=True):
        radius = np.hypot(y - 400, x - center)
        assert pure[(radius > 199) & disc].all()
        assert not pure[radius < 197].any()
