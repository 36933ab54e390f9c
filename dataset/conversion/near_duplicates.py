"""Find near-duplicate images: copies at another size, quality or brightness, and consecutive frames of a video.

Two thumbnails must meet two conditions. Their difference hashes (which cells are brighter than the cell to their left)
differ in at most `MOST_BITS` of 256 bits, and their cells have a correlation of at least `LEAST_CORRELATION`. The hash
alone is not
sufficient: in images with plain areas, such as documents or night scenes, most bits are 0 in any case.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

HASH_SIDE = 16  # cells; with 8 the hashes of some different photos are closer than those of copies
HASH_BITS = HASH_SIDE * HASH_SIDE
MOST_BITS = 32
LEAST_CORRELATION = 0.9  # copies of other brightness or contrast have 0.97, frames shifted by 1% of their width 0.94
LEAST_CONTRAST = 2.0  # gray levels, standard deviation of the cells; below it they show noise and vignetting
_PAIRS_AT_ONCE = 1 << 22  # 16 MiB for each of two products


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Return the gray cells, uint8 [HASH_SIDE, HASH_SIDE + 1], of an RGB image uint8 [h, w, 3] of any size."""
    luminance = Image.fromarray(image).convert("L")
    return np.asarray(luminance.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX))


def near_duplicates(thumbnails: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Return pairs (i, j) of indices of near-duplicates, i < j, in ascending order.

    All pairs are compared, by matrix products: 2 s of a core for 10,000 images, 100 times as long for 100,000.
    """
    cells = np.array(thumbnails, np.float32).reshape(-1, HASH_SIDE, HASH_SIDE + 1)
    # a product of two rows is the number of equal bits minus the number of different bits
    signs = np.where(cells[:, :, 1:] > cells[:, :, :-1], np.float32(1), np.float32(-1)).reshape(-1, HASH_BITS)
    directions = _directions(cells.reshape(-1, HASH_SIDE * (HASH_SIDE + 1)))
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(cells)))
    pairs = []
    for start in range(0, len(cells), rows):
        block = slice(start, start + rows)
        alike = signs[block] @ signs[start:].T >= HASH_BITS - 2 * MOST_BITS
        alike &= directions[block] @ directions[start:].T >= LEAST_CORRELATION
        first, second = np.nonzero(alike)
        pairs += [(start + i, start + j) for i, j in zip(first.tolist(), second.tolist(), strict=True) if i < j]
    return pairs


def _directions(cells: np.ndarray) -> np.ndarray:
    """Return rows whose products are correlations, [N, cells]; zeros for an image without contrast."""
    centered = cells - cells.mean(axis=1, keepdims=True)
    contrast = cells.std(axis=1, keepdims=True)
    return (
        np.where(contrast >= LEAST_CONTRAST, centered / np.maximum(contrast, LEAST_CONTRAST), 0) / cells.shape[1] ** 0.5
    )
