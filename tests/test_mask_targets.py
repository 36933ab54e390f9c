"""Mask targets against torchvision's of whole bitmaps, and of masks within boxes against bitmaps made of these."""

import numpy as np
import tensorflow as tf

from efficientdet.plugins.mask_rcnn.sampled_regions import mask_targets

YX = [1, 0, 3, 2]


def targets_of(*arrays, compiled=False, **options):
    return np.asarray(
        tf.function(mask_targets, jit_compile=compiled, autograph=False)(*map(tf.constant, arrays), **options)
    )


def regions_of(golden, image):
    """Boxes of the positive ones that were drawn, and their objects."""
    chosen = golden[f"subset_labels{image}"] > 0
    boxes = np.concatenate([golden[f"proposals{image}"], golden[f"gt_boxes{image}"]])[golden[f"subset_sampled{image}"]]
    return boxes[chosen][:, YX], golden[f"subset_matched{image}"][chosen].astype(np.int32)


def test_the_published_targets(golden_folder):
    golden, first = np.load(golden_folder / "families" / "maskrcnn_roi_losses.npz"), 0
    height, width = golden["mask_size"]
    for image in range(2):
        regions, matched = regions_of(golden, image)
        masks = np.unpackbits(golden[f"gt_masks_bits{image}"], axis=-1)[..., :width]
        frames = np.tile(np.float32([0, 0, height, width]), (len(masks), 1))
        found = targets_of(
            masks[None], frames[None], regions[None], matched[None], np.int32([[height, width]]), max_samples=10
        )[0]
        np.testing.assert_allclose(found, golden["mask_targets"][first : first + len(found)], atol=1e-4)
        first += len(found)
    assert first == len(golden["mask_targets"])


def bitmap_of(mask, box, size):
    """Each pixel takes the cell that its middle lies in; one cell has a whole number of pixels."""
    bitmap, (top, left, bottom, right) = np.zeros(size, np.uint8), box.astype(int)
    cell = (bottom - top) // len(mask), (right - left) // len(mask)
    bitmap[top:bottom, left:right] = np.kron(mask, np.ones(cell, np.uint8))
    return bitmap


def test_masks_within_boxes_are_their_bitmaps():
    """Equal where a cell is a pixel; where it is more, the edges are as steep as a cell is long."""
    rng, size = np.random.default_rng(0), (40, 48)
    masks = (rng.uniform(size=(2, 2, 8, 8)) < 0.5).astype(np.uint8)
    boxes = np.float32([[[3, 5, 11, 13], [32, 40, 40, 48]], [[0, 0, 8, 8], [8, 8, 32, 40]]])
    regions = np.float32(
        [[[2.5, 4, 12, 12.25], [0, 0, 40, 48], [31, 38.5, 40, 48]], [[0, 0, 7.5, 10], [0, 0, 1, 1], [9, 8, 30, 44]]]
    )
    matched = np.int32([[0, 0, 1], [0, 0, 1]])
    bitmaps = np.stack(
        [
            [bitmap_of(mask, box, size) for mask, box in zip(*pair, strict=True)]
            for pair in zip(masks, boxes, strict=True)
        ]
    )
    sizes, whole = np.int32([size, size]), np.broadcast_to(np.float32([0, 0, *size]), (2, 2, 4))
    found = targets_of(masks, boxes, regions, matched, sizes, size=5, max_samples=10)
    wanted = targets_of(bitmaps, whole, regions, matched, sizes, size=5, max_samples=10)
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-5)
    np.testing.assert_allclose(found[1, :2], wanted[1, :2], atol=1e-5)
    assert np.abs(found[1, 2] - wanted[1, 2]).mean() < 0.05
    assert 0.2 < wanted[1, 2].mean() < 0.8


def test_a_mask_goes_on_at_the_border_of_the_image_and_fades_at_its_own():
    """Cells of four pixels: at a border within the image the first of them has half its value, at the image's all."""
    masks, frames = np.ones((1, 2, 2, 2), np.uint8), np.float32([[[0, 4, 8, 12], [8, 0, 16, 8]]])
    regions = np.float32([[[0, 3.5, 1, 4.5], [15, 7, 16, 8]]])
    found = targets_of(masks, frames, regions, np.int32([[0, 1]]), np.int32([[16, 16]]), size=1)
    np.testing.assert_allclose(found[0, :, 0, 0], [1 * 0.625, 1 * 0.5], atol=1e-6)
