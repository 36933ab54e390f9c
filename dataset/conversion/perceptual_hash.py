"""Images that look alike: a number of 64 bits for each image, of which few differ between versions of one picture.

The signs of the lowest frequencies of the image's brightness against their median (pHash; Zauner 2010, section 3.2.1): neither
another compression nor another size changes them much, a crop of a few per cent changes some.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from PIL import Image

_SIDE = 32  # pixels of what is looked at
_FREQUENCIES = 8
_BITS = _FREQUENCIES**2
_BANDS = 4
_BAND_BITS = _BITS // _BANDS


def perceptual_hash(image: np.ndarray) -> int:
    """The 64 bits of an image, uint8 [h, w, 3]."""
    grey = Image.fromarray(image).convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    frequencies = (_COSINES @ np.asarray(grey, np.float64) @ _COSINES.T).ravel()
    frequencies[0] = 0.0  # how bright the image is says nothing of what it shows
    bits = frequencies > np.median(frequencies[1:])
    return int(np.packbits(bits).view(">u8")[0])


def near_duplicates(hashes: Sequence[int], most_bits: int) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of places in `hashes` whose bits differ in at most `most_bits`, ascending.

    Of places with equal hashes, only the first is paired with others. Two hashes so near differ in at most a quarter of
    `most_bits` in one of their four quarters at least (Norouzi et al. 2012): only those that do are compared.
    """
    values, first, places = np.unique(np.array(hashes, np.uint64), return_index=True, return_inverse=True)
    pairs = {(int(first[place]), number) for number, place in enumerate(places.ravel()) if first[place] != number}
    for band in range(_BANDS):
        keys = (values >> np.uint64(band * _BAND_BITS)).astype(np.uint16)
        order = np.argsort(keys, kind="stable")
        bounds = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=1 << _BAND_BITS))])  # of each key in `order`
        for flipped in _flips(most_bits // _BANDS):
            begin = bounds[keys ^ flipped]
            counts = bounds[(keys ^ flipped).astype(np.int64) + 1] - begin
            ours = np.repeat(np.arange(len(values)), counts)
            theirs = order[np.arange(len(ours)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(begin, counts)]
            near = (ours < theirs) & (np.bitwise_count(values[ours] ^ values[theirs]) <= most_bits)
            found = np.sort(np.stack([first[ours[near]], first[theirs[near]]], axis=-1), axis=-1)
            pairs.update(map(tuple, found.tolist()))
    return sorted(pairs)


def _flips(most: int) -> list[np.uint16]:
    """Every set of up to `most` bits of a band."""
    return [np.uint16(sum(1 << bit for bit in bits)) for count in range(most + 1)
            for bits in itertools.combinations(range(_BAND_BITS), count)]


def _cosines() -> np.ndarray:
    """The first rows of the discrete cosine transform, [frequencies, side]."""
    return np.cos(np.pi / _SIDE * np.outer(np.arange(_FREQUENCIES), np.arange(_SIDE) + 0.5))


_COSINES = _cosines()
