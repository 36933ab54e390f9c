"""Pictures that look alike: the same photo at another size, quality or brightness, or the next frame of a film.

A difference hash: which cells of a small grey picture are brighter than the one to their left. Of the photos of coco_sample
and BCCD, copies at half the size, as JPEG of quality 60 or brighter differ by 2 to 4 of the 256 bits in the median, and 95 % of
them by 14 at most; two photos differ by at least 69, but for a pair of BCCD that shows the same cells.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

HASH_SIDE = 16  # cells; of 8 the hashes of some different photos are nearer to each other than those of copies
HASH_BITS = HASH_SIDE * HASH_SIDE
NEAR_DUPLICATE_BITS = 32  # two pictures whose hashes differ by at most this many are near-duplicates
_PAIRS_AT_ONCE = 1 << 22  # 16 MiB of products


def perceptual_hash(image: np.ndarray) -> int:
    """A number of `HASH_BITS` bits of an image [h, w, 3] uint8 RGB of any size; images of one colour have 0."""
    luminance = Image.fromarray(image).convert("L")
    cells = np.asarray(luminance.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX))
    return int.from_bytes(np.packbits(cells[:, 1:] > cells[:, :-1]).tobytes())


def near_duplicates(hashes: Sequence[int], most_bits: int = NEAR_DUPLICATE_BITS) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j and ascending, of places whose hashes differ by at most so many bits.

    Every hash is compared with every other, by matrix products: a second of a core for 10,000, 100 times that for 100,000.
    """
    packed = np.frombuffer(b"".join(value.to_bytes(HASH_BITS // 8) for value in hashes), np.uint8)
    signs = np.unpackbits(packed).reshape(-1, HASH_BITS) * np.float32(2) - 1  # products sum to bits alike less bits that differ
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(signs)))
    pairs = []
    for start in range(0, len(signs), rows):
        alike = signs[start : start + rows] @ signs[start:].T
        first, second = np.nonzero(alike >= HASH_BITS - 2 * most_bits)
        pairs += [(start + i, start + j) for i, j in zip(first.tolist(), second.tolist(), strict=True) if i < j]
    return pairs
