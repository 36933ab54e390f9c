"""Tiles of labeled images: how many there are, and how large objects are in them."""

from dataclasses import replace

import numpy as np

from dataset.input.tiling import Tiling
from dataset.records.labeled_images import LabeledImages

_EMPTY_SHARE = 0.2  # most tiles of images without objects, as a share of all


def tile_counts(sizes: np.ndarray, tiling: Tiling) -> np.ndarray:
    """Return the number of tiles of images of sizes [n, 2], [n] int64."""
    different, which = np.unique(sizes, axis=0, return_inverse=True)
    counts = [len(tiling.tiles((height, width))) for height, width in different.tolist()]
    return np.array(counts, np.int64)[which.ravel()]


def tiles_per_epoch(images: LabeledImages, tiling: Tiling) -> np.ndarray:
    """Return the number of tiles of each image per epoch, [n] float64.

    All of its tiles, but at most one more than it has objects: few empty ones. Images without objects, such as most
    parts of a photo of the earth, are shown less than once if they would be more than a fifth of all tiles.
    """
    counts = images.counts()
    factors = np.minimum(tile_counts(images.sizes, tiling), counts + 1).astype(np.float64)
    empty = counts == 0
    if empty.any() and not empty.all():
        factors[empty] = min(1.0, _EMPTY_SHARE / (1 - _EMPTY_SHARE) * factors[~empty].sum() / empty.sum())
    return factors


def seen_in_tiles(images: LabeledImages, tiling: Tiling) -> LabeledImages:
    """Return the images as training sees them: as large as a tile, each object at some place in it, cut to it."""
    tile = np.array(tiling.size, np.int32)
    sides = np.minimum(images.boxes[:, 2:] - images.boxes[:, :2], tile)
    places = images.boxes[:, :2] % np.maximum(tile - sides, 1)
    boxes = np.concatenate([places, places + sides], axis=1).astype(np.float32)
    return replace(images, sizes=np.tile(tile, (len(images), 1)), boxes=boxes)


def larger_than_a_tile(images: LabeledImages, tiling: Tiling) -> int:
    """Return the number of objects that no tile shows completely."""
    return int(((images.boxes[:, 2:] - images.boxes[:, :2]) > tiling.size).any(axis=1).sum())
