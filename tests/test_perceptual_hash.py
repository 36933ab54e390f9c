from io import BytesIO

import numpy as np
import pytest
from labelled import jpeg, picture
from PIL import Image

from dataset.conversion.perceptual_hash import near_duplicates, perceptual_hash


def opened(data):
    return Image.open(BytesIO(data))


@pytest.mark.parametrize("changed", [
    lambda image: opened(jpeg(image, quality=30)), lambda image: image.resize((77, 310)),
    lambda image: image.crop((3, 2, 158, 158)), lambda image: Image.eval(image, lambda value: value * 0.8 + 10)],
    ids=["compressed", "resized", "cropped", "darker"])
def test_versions_of_a_picture_are_near_and_others_are_not(changed):
    random = np.random.default_rng(0)
    images = [opened(picture(random, (160, 160))) for _ in range(30)]
    hashes = [perceptual_hash(np.asarray(image)) for image in images + [changed(image) for image in images]]
    assert near_duplicates(hashes, 10) == [(number, 30 + number) for number in range(30)]


@pytest.mark.parametrize("most_bits", [0, 3, 10])
def test_pairs_are_those_of_all(most_bits):
    random = np.random.default_rng(1)
    hashes = random.integers(0, 2**64, 60, dtype=np.uint64)
    flips = [sum(1 << int(bit) for bit in random.choice(64, count, replace=False)) for count in range(14)]
    hashes = [int(value) for value in hashes] + [int(hashes[count]) ^ flipped for count, flipped in enumerate(flips)]
    expected = [(i, j) for i in range(len(hashes)) for j in range(i + 1, len(hashes))
                if bin(hashes[i] ^ hashes[j]).count("1") <= most_bits]
    assert near_duplicates(hashes, most_bits) == expected
    assert len(expected) == most_bits + 1


def test_equal_ones_are_paired_with_the_first():
    assert near_duplicates([5, 7, 5, 5], 1) == [(0, 1), (0, 2), (0, 3)]
    assert near_duplicates([], 10) == []
