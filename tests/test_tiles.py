"""Tiles cover an image exactly, and what several of them show becomes one object again."""

import numpy as np
import pytest

from dataset.input.tiling import Tiling
from efficientdet.inference.tiles import TiledDetector, merged_over_tiles
from object_detection.coco.results import DetectionRows
from object_detection.coco.run_length_masks import DecodedMasks, moved, run_lengths, united
from program_support.errors import InputError

TILE, SIZE = 100, (250, 330)
TILING = Tiling(size=(TILE, TILE), overlap=0.2, whole=False)


def boxes_of(rows):
    return sorted(map(tuple, rows.boxes.round(2).tolist()))


def scene(objects, *, score=lambda part: 0.9, masks=False):
    """An image whose pixels say which object is there, and a detector that finds what it sees of each, exactly.

    `score`: of the share of the object that a tile shows.
    """
    image = np.zeros((*SIZE, 3), np.uint8)
    for number, (top, left, bottom, right) in enumerate(objects, start=1):
        image[top:bottom, left:right, 0] = number

    def detect(images):
        found = []
        for seen in images:
            boxes, scores, shown = [], [], []
            for number in np.setdiff1d(seen, [0]):
                rows, columns = np.nonzero(seen[..., 0] == number)
                top, left, bottom, right = objects[number - 1]
                boxes.append([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])
                scores.append(score(len(rows) / ((bottom - top) * (right - left))))
                shown.append(run_lengths(seen[..., 0] == number))
            found.append(
                DetectionRows.of_image(
                    np.float32(boxes).reshape(-1, 4),
                    np.float32(scores),
                    np.full(len(boxes), 7),
                    masks=shown if masks else None,
                )
            )
        return found

    return image, detect


@pytest.mark.parametrize("overlap", [0, 0.2, 0.9])
@pytest.mark.parametrize("image_size", [(250, 330), (100, 100), (101, 100), (99, 1000), (1, 1), (180, 260)])
def test_tiles_cover_every_pixel_and_nothing_else(image_size, overlap):
    tiles = Tiling(size=(100, 90), overlap=overlap, whole=False).tiles(image_size)
    covered = np.zeros(image_size, int)
    for top, left, bottom, right in tiles:
        assert bottom - top == min(100, image_size[0])
        assert right - left == min(90, image_size[1])
        covered[top:bottom, left:right] += 1
    assert covered.min() == 1 or overlap
    assert covered.min() >= 1
    assert len(np.unique(tiles, axis=0)) == len(tiles)
    for starts, side in ((np.unique(tiles[:, 0]), 100), (np.unique(tiles[:, 1]), 90)):
        assert (np.diff(starts) <= side * (1 - overlap) + 1e-9).all()


def test_the_whole_image_is_one_tile_more():
    assert Tiling(size=(100, 100)).tiles((90, 150)).tolist() == [[0, 0, 90, 100], [0, 50, 90, 150], [0, 0, 90, 150]]
    assert Tiling(size=(100, 100)).tiles((90, 100)).tolist() == [[0, 0, 90, 100]]


@pytest.mark.parametrize("text", ["", "0", "31", "x", "64x", "64x64x64", "-64", "6e2", "1.5", "9" * 5000, "64x0", "²"])
def test_what_is_no_tile_is_one_line(text):
    with pytest.raises(InputError, match="expected a side such as 512, or WIDTHxHEIGHT, of 32 pixels or more"):
        Tiling.parse(text, overlap=0.2, whole=True)


def test_sides_are_width_and_height():
    assert Tiling.parse("640x480", overlap=0, whole=False).size == (480, 640)
    assert Tiling.parse("512", overlap=0, whole=False).size == (512, 512)


OBJECTS = {
    "inside one tile": [(10, 10, 40, 40)],
    "in two tiles whole": [(10, 82, 40, 98)],
    "cut in one tile": [(10, 70, 40, 110)],
    "larger than the overlap": [(30, 60, 60, 130)],
    "at a corner of four": [(60, 60, 130, 130)],
    "as wide as the image": [(20, 0, 60, 330)],
    "larger than a tile": [(40, 30, 220, 300)],
    "neighbors in the overlap": [(10, 70, 40, 89), (10, 91, 40, 120)],
    "rows of them": [(10, left, 40, left + 30) for left in range(0, 330, 33)],
    "pieces on both sides of a border": [(10, 10, 40, 79), (10, 101, 40, 160)],
    "a sliver beyond the border": [(10, 40, 40, 82)],
}


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("likes", ["parts alike", "whole better", "parts better"])
@pytest.mark.parametrize("name", OBJECTS)
def test_every_object_is_found_once_and_whole(name, likes, whole):
    score = {
        "parts alike": lambda part: 0.9,
        "whole better": lambda part: 0.5 + 0.4 * part,
        "parts better": lambda part: 0.9 - 0.3 * part,
    }[likes]
    image, detect = scene(OBJECTS[name], score=score)
    [rows] = TiledDetector(detect, Tiling(size=(TILE, TILE), whole=whole), batch_size=3)([image])
    assert boxes_of(rows) == sorted(map(tuple, np.float32(OBJECTS[name]).tolist()))
    assert (np.diff(rows.scores) <= 0).all()
    assert rows.category_ids.tolist() == [7] * len(rows.scores)


def test_masks_are_put_together_in_the_image():
    objects = OBJECTS["larger than a tile"] + [(225, 310, 240, 330)]
    image, detect = scene(objects, masks=True)
    [rows] = TiledDetector(detect, TILING, batch_size=2)([image])
    assert len(rows.masks) == 2
    for box, mask in zip(rows.boxes, DecodedMasks(rows.masks), strict=True):
        wanted = np.zeros(SIZE, bool)
        top, left, bottom, right = box.astype(int)
        wanted[top:bottom, left:right] = True
        np.testing.assert_array_equal(mask, wanted)


def test_an_image_of_one_tile_is_detected_as_it_is():
    rows = DetectionRows.of_image(
        np.float32([[-5, -5, 200, 200], [0, 0, 9, 9], [0, 0, 9, 9]]), np.float32([0.3, 0.2, 0.1]), np.array([1, 1, 1])
    )
    [found] = TiledDetector(lambda images: [rows] * len(images), TILING, batch_size=2)(
        [np.zeros((100, 50, 3), np.uint8)]
    )
    assert found is rows


def test_batches_and_progress():
    sizes, told = [], []

    def detect(images):
        sizes.append(len(images))
        return scene([])[1](images)

    [rows] = TiledDetector(detect, TILING, batch_size=5, on_progress=lambda *counts: told.append(counts))(
        [scene([])[0]]
    )
    assert (sizes, told) == ([5, 5, 2], [(5, 12), (10, 12), (12, 12)])
    assert rows.boxes.shape == (0, 4)


TWO = np.array([[0, 0, 100, 100], [0, 80, 100, 180]])


def merged(boxes, scores, found_in, classes=None):
    classes = np.ones(len(boxes), int) if classes is None else np.array(classes)
    parts = merged_over_tiles(
        np.float32(boxes), np.float32(scores), classes, np.array(found_in), tiles=TWO, size=(100, 180)
    )
    return [sorted(numbers.tolist()) for numbers in parts]


def test_what_one_tile_keeps_apart_stays_apart():
    assert merged([[0, 82, 50, 98], [0, 82, 50, 97.5]], [0.9, 0.8], [0, 0]) == [[0], [1]]
    assert merged([[0, 82, 50, 97], [0, 82, 50, 97.5]], [0.9, 0.8], [0, 1]) == [[0]]


def test_classes_do_not_meet():
    assert merged([[0, 82, 50, 97], [0, 82, 50, 97]], [0.9, 0.8], [0, 1], classes=[1, 2]) == [[0], [1]]


def test_a_guess_at_the_whole_does_not_replace_a_sure_part():
    half, whole = [0, 60, 50, 100], [0, 82, 50, 100]
    assert merged([half, [0, 80, 50, 130]], [0.9, 0.1], [0, 1]) == [[0]]  # nor is it made a part
    assert merged([half, [0, 80, 50, 130]], [0.9, 0.6], [0, 1]) == [[0, 1]]
    assert merged([whole, [0, 83, 50, 130]], [0.9, 0.6], [0, 1]) == [[1]]
    assert merged([whole, [0, 83, 50, 130]], [0.9, 0.4], [0, 1]) == [[0]]


def test_moved_masks_are_those_of_the_whole_image():
    random = np.random.default_rng(0)
    for height, width, whole, offset in [
        (5, 4, (5, 9), (0, 3)),
        (5, 4, (9, 9), (2, 3)),
        (6, 6, (6, 6), (0, 0)),
        (3, 3, (7, 5), (4, 2)),
        (1, 1, (2, 2), (1, 1)),
    ]:
        for share in (0, 0.3, 0.9, 1):
            mask, wanted = random.random((height, width)) < share, np.zeros(whole, bool)
            wanted[offset[0] : offset[0] + height, offset[1] : offset[1] + width] = mask
            assert moved(run_lengths(mask), np.array(offset), size=whole) == run_lengths(wanted)
            other = random.random(whole) < 0.5
            assert united([run_lengths(wanted), run_lengths(other)]) == run_lengths(wanted | other)
