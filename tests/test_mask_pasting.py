"""Masks within boxes, pasted into images: against a loop over pixels, and against torchvision."""

import itertools

import numpy as np
import pytest

from object_detection.coco.run_length_masks import pasted_masks


def by_loop(mask, box, size):
    """Bilinear between the middles of the cells; beyond the outermost, their value."""
    pasted, cells = np.zeros(size, bool), mask.shape[0]
    for y, x in itertools.product(range(size[0]), range(size[1])):
        if box[0] <= y + 0.5 < box[2] and box[1] <= x + 0.5 < box[3]:
            places = [
                np.clip((place + 0.5 - low) / (high - low) * cells - 0.5, 0, cells - 1)
                for place, low, high in ((y, box[0], box[2]), (x, box[1], box[3]))
            ]
            value = sum(
                mask[i, j] * max(0, 1 - abs(places[0] - i)) * max(0, 1 - abs(places[1] - j))
                for i, j in itertools.product(range(cells), range(cells))
            )
            pasted[y, x] = value > 0.5
    return pasted


@pytest.mark.parametrize("cells", [1, 2, 7])
def test_against_a_loop(cells):
    random, size = np.random.default_rng(cells), (23, 31)
    low = random.uniform(-6, 18, (12, 2))
    boxes = np.concatenate([low, low + random.uniform(0.3, 25, (12, 2))], axis=1)  # some reach over the border
    masks = random.random((12, cells, cells)).astype(np.float32)
    found = list(pasted_masks(masks, boxes, size=size))
    assert 500 < sum(mask.sum() for mask in found) < 12 * 23 * 31 / 2
    for mask, box, pasted in zip(masks, boxes, found, strict=True):
        np.testing.assert_array_equal(pasted, by_loop(mask, box, size))


def test_a_full_mask_covers_the_pixels_whose_middles_lie_in_its_box():
    [mask] = pasted_masks(np.ones((1, 28, 28)), [[2.4, 3.6, 5.5, 6.4]], size=(8, 9))
    assert np.argwhere(mask).tolist() == [[y, x] for y in (2, 3, 4) for x in (4, 5)]


@pytest.mark.parametrize("box", [[-9, -9, -2, -2], [50, 0, 60, 4], [3, 3, 3, 3], [5, 5, 2, 2]])
def test_boxes_without_a_pixel_show_nothing(box):
    [mask] = pasted_masks(np.ones((1, 4, 4)), [box], size=(10, 10))
    assert mask.shape == (10, 10)
    assert not mask.any()


@pytest.fixture(scope="module")
def torchvision(golden_folder):
    """Boxes yxyx, probabilities, pasted bits and the first four as probabilities, in an image of 240 x 320."""
    stored = np.load(golden_folder / "families" / "maskrcnn_forward.npz")
    size = stored["image"].shape[:2]
    bits = np.unpackbits(stored["pasted_bits"], axis=-1)[..., : size[1]].astype(bool)
    return stored["boxes_original"][:, [1, 0, 3, 2]], stored["mask_probabilities"], bits, stored["pasted_first4"]


def test_in_whole_pixels_is_torchvision(torchvision):
    boxes, masks, bits, first = torchvision
    pasted = np.stack(list(pasted_masks(masks, boxes, size=bits.shape[1:], in_whole_pixels=True)))
    np.testing.assert_array_equal(pasted[:4] | (np.abs(first - 0.5) < 1e-3), bits[:4] | (np.abs(first - 0.5) < 1e-3))
    assert (pasted != bits).sum() < 1e-5 * bits.sum()  # of the others it is not known which are within 1e-3 of 0.5
    exact = np.stack(list(pasted_masks(masks, boxes, size=bits.shape[1:])))
    assert (exact != bits).sum() > 0.05 * bits.sum()  # the two rules are two


@pytest.mark.parametrize("threshold", [0.001, 0.4, 0.9])
def test_probabilities_in_whole_pixels_are_torchvisions(torchvision, threshold):
    boxes, masks, _, first = torchvision
    pasted = pasted_masks(masks[:4], boxes[:4], size=first.shape[-2:], threshold=threshold, in_whole_pixels=True)
    for found, probabilities in zip(pasted, first, strict=True):
        clear = np.abs(probabilities - threshold) > 1e-4
        np.testing.assert_array_equal(found[clear], (probabilities > threshold)[clear])
