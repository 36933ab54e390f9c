"""Thumbnails by hand, near-duplicates by a loop over all pairs, copies of drawn images, and images with plain areas."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

from dataset.conversion.image_statistics import near_duplicates, thumbnail
from dataset.files.image_files import read_stored_image
from dataset.synthetic import draw_image

SHIFTED_BOARDS = [
    ("12100123", "12100175"),
    ("13000129", "13000130"),
    ("50600035", "50600066"),
    ("77000071", "77000076"),
    ("92000002", "92000006"),
    ("92000042", "92000046"),
    ("92000062", "92000066"),
    ("92000102", "92000106"),
]


def copy_of(image, *, size=(110, 90), brightness=1.0):
    stream = io.BytesIO()
    Image.fromarray(np.uint8(np.minimum(image * brightness, 255))).resize(size).save(stream, "JPEG", quality=70)
    return np.asarray(Image.open(stream))


def test_thumbnail_by_hand():
    halves = np.zeros((32, 34, 3), np.uint8)
    halves[:, 18:] = (255, 0, 0)  # Pillow's luminance of red is 76
    assert thumbnail(halves).tolist() == [[0] * 9 + [76] * 8] * 16


def test_pairs_are_those_of_a_loop(monkeypatch):
    monkeypatch.setattr("dataset.conversion.image_statistics._PAIRS_AT_ONCE", 70)  # several blocks
    random = np.random.default_rng(0)
    thumbnails = [random.integers(0, 256, (16, 17), np.uint8) for _ in range(12)]
    thumbnails += [
        np.uint8(np.clip(one + random.normal(0, 6 * number, one.shape), 0, 255))
        for number, one in enumerate(thumbnails)
    ]
    expected = []
    for i, one in enumerate(thumbnails):
        for j, other in enumerate(thumbnails[i + 1 :], start=i + 1):
            brighter = [[cells[y, x + 1] > cells[y, x] for y in range(16) for x in range(16)] for cells in (one, other)]
            different = sum(a != b for a, b in zip(*brighter, strict=True))
            if different <= 32 and np.corrcoef(one.ravel(), other.ravel())[0, 1] >= 0.9:
                expected.append((i, j))
    assert near_duplicates(thumbnails) == expected
    assert 3 <= len(expected) <= 10
    assert near_duplicates([]) == near_duplicates(thumbnails[:1]) == []


def test_copies_are_near_and_others_are_not():
    images = [draw_image((120, 160), np.random.default_rng(seed))[0] for seed in range(24, 36)]
    copies = [copy_of(image, brightness=0.8) for image in images]
    assert near_duplicates([*map(thumbnail, images + copies)]) == [(number, number + 12) for number in range(12)]


def document(random):
    image = Image.new("L", (160, 160), 250)
    draw = ImageDraw.Draw(image)
    for line in random.choice(20, 5, replace=False):
        draw.rectangle([12, line * 8, random.integers(40, 150), line * 8 + 3], fill=120)
    return image


def night(random):
    image = Image.new("L", (160, 160), 4)
    draw = ImageDraw.Draw(image)
    for x, y in random.integers(0, 150, (6, 2)):
        draw.ellipse([x, y, x + 9, y + 9], fill=200)
    return image


@pytest.mark.parametrize("draw", [document, night])
def test_plain_areas_do_not_make_different_images_alike(draw):
    images = [np.asarray(draw(np.random.default_rng(seed)).convert("RGB")) for seed in range(40)]
    copies = [copy_of(image) for image in images[:5]]
    assert near_duplicates([*map(thumbnail, images + copies)]) == [(number, number + 40) for number in range(5)]


def test_images_of_one_color_are_not_alike():
    blank = [thumbnail(np.full((60, 80, 3), level, np.uint8)) for level in (0, 0, 128, 255)]
    noise = [thumbnail(np.random.default_rng(seed).integers(120, 130, (300, 300, 3), np.uint8)) for seed in range(2)]
    assert near_duplicates(blank + noise) == []


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("deeppcb/images", SHIFTED_BOARDS),
        ("bccd/images", [("BloodImage_00037", "BloodImage_00038")]),
        ("coco_sample", []),
    ],
)
def test_real_images(data_folder, folder, expected):
    """The pairs of DeepPCB and BCCD show the same scene, shifted by a few pixels."""
    paths = sorted((data_folder / folder).rglob("*.jpg"))
    thumbnails = [thumbnail(read_stored_image(str(path), least_side=128).pixels) for path in paths]
    assert [(paths[i].stem, paths[j].stem) for i, j in near_duplicates(thumbnails)] == expected
