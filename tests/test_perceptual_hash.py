"""Hashes by hand, near-duplicates by a loop over all pairs, copies of drawn pictures."""

import io

import numpy as np
from PIL import Image

from dataset.conversion.perceptual_hash import (
    HASH_BITS,
    HASH_SIDE,
    NEAR_DUPLICATE_BITS,
    near_duplicates,
    perceptual_hash,
)
from dataset.synthetic_scenes import draw_image


def test_by_hand():
    ramp = np.broadcast_to(np.arange(17, dtype=np.uint8)[None, :, None] * 10, (16, 17, 3))
    assert perceptual_hash(np.ascontiguousarray(ramp)) == 2**HASH_BITS - 1
    assert perceptual_hash(np.ascontiguousarray(ramp[:, ::-1])) == 0
    assert perceptual_hash(np.full((5, 9, 3), 200, np.uint8)) == 0
    step = np.zeros((16, 17, 3), np.uint8)
    step[0, 3:] = 90  # brighter than the cell to the left in the first row, at the third place
    assert perceptual_hash(step) == 1 << (HASH_BITS - 3)
    assert HASH_BITS == HASH_SIDE**2


def test_near_duplicates_against_a_loop():
    random = np.random.default_rng(0)
    hashes = [int.from_bytes(random.bytes(HASH_BITS // 8)) for _ in range(20)]
    for number in range(10):  # of those a copy with so many bits turned
        hashes.append(hashes[number] ^ ((1 << number * 8) - 1))
    for most_bits in (0, 16, 40):
        wanted = [(i, j) for i in range(30) for j in range(i + 1, 30) if (hashes[i] ^ hashes[j]).bit_count() <= most_bits]
        assert near_duplicates(hashes, most_bits) == wanted
    assert near_duplicates(hashes, 16)[:3] == [(0, 20), (1, 21), (2, 22)]
    assert near_duplicates([], 3) == near_duplicates([5], 3) == []


def test_many_are_compared_in_blocks(monkeypatch):
    monkeypatch.setattr("dataset.conversion.perceptual_hash._PAIRS_AT_ONCE", 14)
    assert near_duplicates([7, 1 << 200, 7, 3, 1 << 200, 7, 0], 1) == [(0, 2), (0, 3), (0, 5), (1, 4), (1, 6), (2, 3), (2, 5),
                                                                       (3, 5), (4, 6)]


def test_copies_are_near_and_others_are_not():
    pictures = [draw_image((120, 160), np.random.default_rng(seed))[0] for seed in range(12)]
    copies = []
    for picture in pictures:
        stream = io.BytesIO()
        Image.fromarray(picture).resize((110, 90)).save(stream, "JPEG", quality=70)
        copies.append(np.asarray(Image.open(stream)))
    hashes = [perceptual_hash(picture) for picture in pictures + copies]
    assert near_duplicates(hashes, NEAR_DUPLICATE_BITS) == [(number, number + 12) for number in range(12)]
