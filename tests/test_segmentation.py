import io
import json

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask
from text_tables import rows

from dataset.conversion import segmentation as segmentation_module
from dataset.conversion.segmentation import UnusableSegmentation, check_segmentation, mask_png

SIZE = (20, 30)  # height, width


def pixels_of(segmentation, size=SIZE):
    check_segmentation(segmentation)
    return np.asarray(Image.open(io.BytesIO(mask_png(segmentation, size))))


def rectangle(left, top, right, bottom):
    return [left, top, right, top, right, bottom, left, bottom]


def by_pycocotools(segmentation, size):
    """Given valid polygons or run lengths only."""
    found = coco_mask.decode(coco_mask.frPyObjects(segmentation, *size))
    return found if found.ndim == 2 else found.max(axis=2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # pycocotools 2.0.11 under NumPy 2
def test_masks_of_coco_are_those_of_pycocotools(data_folder):
    content = json.loads((data_folder / "coco_sample" / "annotations" / "instances_val2017.json").read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    kinds = set()
    for annotation in content["annotations"]:
        given, size = annotation["segmentation"], sizes[annotation["image_id"]]
        np.testing.assert_array_equal(pixels_of(given, size), by_pycocotools(given, size))
        kinds.add(type(given))
    assert kinds == {list, dict}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_polygons_over_the_border_are_those_of_pycocotools():
    random = np.random.default_rng(0)
    for _ in range(100):
        given = [random.uniform((-25, -15), (55, 35), (5, 2)).ravel().tolist() for _ in range(2)]
        np.testing.assert_array_equal(pixels_of(given), by_pycocotools(given, SIZE))


def test_polygons_outside_are_empty():
    assert not pixels_of([rectangle(40, 5, 50, 9)]).any()


def test_run_lengths_go_down_the_columns():
    expected = np.zeros(SIZE, np.uint8)
    expected[15:, 0] = expected[:4, 1] = 1
    for counts in ([15, 9, 576], [15.0, 9.0, 576.0], [0, 0, 15, 9, 576], [15, 4, 0, 5, 576]):
        np.testing.assert_array_equal(pixels_of({"size": [20, 30], "counts": counts}), expected)
    assert not pixels_of({"size": [20, 30], "counts": [600]}).any()


def test_compressed_run_lengths_are_those_of_pycocotools():
    random = np.random.default_rng(1)
    for _ in range(200):
        height, width = (int(side) for side in random.integers(1, 90, 2))
        expected = np.kron(random.random((height, width)) < random.random(), np.ones(random.integers(1, 9, 2))).astype(
            np.uint8
        )
        code = coco_mask.encode(np.asfortranarray(expected))
        found = pixels_of({"size": code["size"], "counts": code["counts"].decode()}, expected.shape)
        np.testing.assert_array_equal(found, expected)


NO_MASKS = [
    *rows(r"""
[[1, 2, 1e999, 2, 1e999, 4, 1, 4]] | finite coordinates
[[1, 2, 1.1e9, 2, 1.1e9, 4, 1, 4]] | finite coordinates
[[1, 2, 1e9, 2, 1e9, 4, 1, 4]] | outline of 2000000002 pixels
[[1, 2, True, 2, 3, 4, 1, 4]] | pairs of x and y
[[1, 2, "3", 2, "3", 4, 1, 4]] | pairs of x and y
[[1, 2, 3, 4]] | pairs of x and y
[[1, 2, 3, 4, 5, 6, 7]] | pairs of x and y
[7] | polygon 7
[] | 0 polygons
'text' | 'text', expected polygons or run lengths
{"size": [20, 30]} | expected run lengths
{"counts": [600]} | expected run lengths
{"size": [20, "30"], "counts": [600]} | expected run lengths
{"size": [20, 30], "counts": [True]} | expected run lengths
{"size": [30, 20], "counts": [600]} | \[30, 20\], expected that of the image, \[20, 30\]
{"size": [20, 30], "counts": [-1, 601]} | run lengths
{"size": [20, 30], "counts": [9223372036854775808, 600]} | run lengths
{"size": [20, 30], "counts": [1e999, 600]} | run lengths
{"size": [20, 30], "counts": [10.5, 589.5]} | run lengths
{"size": [20, 30], "counts": [599]} | sum 600
{"size": [20, 30], "counts": []} | sum 600
{"size": [20, 30], "counts": "O"} | run lengths \[-1\]
{"size": [20, 30], "counts": "PPPPPPPPPPPPPPPPPPPP"} | no encoder writes
{"size": [20, 30], "counts": "P"} | no encoder writes
{"size": [20, 30], "counts": "\ud800"} | no encoder writes
"""),
    ([[1, 2, 10**400, 2, 3, 4]], "finite coordinates"),
    ([[1, 2, 3, 4, 5, 6]] * 10_001, "10001 polygons"),
]


@pytest.mark.parametrize(("given", "reason"), NO_MASKS)
def test_what_is_no_mask_of_the_image(given, reason):
    with pytest.raises(UnusableSegmentation, match=reason):
        pixels_of(given)


def test_an_outline_without_end(monkeypatch):
    zigzag = [value for step in range(50) for value in (30 * (step % 2), step / 4)]
    assert pixels_of([zigzag]).any()
    monkeypatch.setattr(segmentation_module, "LONGEST_OUTLINE", 1000)
    with pytest.raises(UnusableSegmentation, match="outline of 1500 pixels in its segmentation, expected at most 1000"):
        pixels_of([zigzag])
