import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from efficientdet.inference.exif_orientation import stored_image, upright_boxes, upright_image

STORED = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turns_as_pillow_does_and_back(orientation):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(STORED).save(file, "PNG", exif=exif)
    wanted = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    np.testing.assert_array_equal(upright_image(STORED, orientation), wanted)
    np.testing.assert_array_equal(stored_image(wanted, orientation), STORED)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_go_with_their_pixels(orientation):
    for top, left, bottom, right in ((0, 0, 1, 1), (1, 2, 4, 3), (0, 5, 5, 7)):
        marked = np.zeros((5, 7), np.uint8)
        marked[top:bottom, left:right] = 1
        rows, columns = np.nonzero(upright_image(marked, orientation))
        found = upright_boxes(np.float32([[top, left, bottom, right]]), orientation, size=(5, 7))
        assert found.tolist() == [[rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]]


def test_no_boxes():
    assert upright_boxes(np.zeros((0, 4), np.float32), 6, size=(5, 7)).shape == (0, 4)
