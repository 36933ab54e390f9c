"""Parts of encoded images, counted against what the writers of the formats document and Pillow writes."""

import io
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from dataset.files.image_formats import image_parts


def encoded(kind, *, size=(40, 30), mode="RGB", **settings):
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind, **settings)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("mode", "settings", "scans"),
    [
        ("RGB", {}, 1),
        ("RGB", {"progressive": True}, 10),
        ("L", {"progressive": True}, 6),  # jpeg_simple_progression of libjpeg
        ("RGB", {"restart_marker_blocks": 1}, 1),
        ("RGB", {"progressive": True, "restart_marker_blocks": 1}, 10),
    ],
)
def test_scans_of_a_jpeg(mode, settings, scans):
    whole = encoded("JPEG", mode=mode, quality=95, **settings)
    with_thumbnail = whole[:2] + b"\xff\xe1" + (len(whole) + 2).to_bytes(2) + whole + whole[2:]
    followed = whole + whole  # as in a file with a second image, or a film
    for one in (whole, with_thumbnail, followed, whole[:-2]):
        assert Counter(image_parts(one))["scan"] == scans


def test_parts_are_counted():
    jpeg, png, gif = (encoded(kind) for kind in ("JPEG", "PNG", "GIF"))
    head = 13 + 3 * 256
    assert gif[head] == ord(",")
    for before, part, after in [
        (jpeg[:2], b"\xff\xe0\0\2", jpeg[2:]),
        (jpeg[:2], b"\xff", jpeg[2:]),
        (jpeg[:2], b"\xff\xd0", jpeg[2:]),
        (png[:33], b"\0\0\0\0teXt\0\0\0\0", png[33:]),
        (gif[:head], b"!\xfe\1a\0", gif[head:]),
        (gif[:head], b"\0", gif[head:]),
        (gif[:head] + b"!\xfe", b"\1a", b"\0" + gif[head:]),
    ]:
        found = [Counter(image_parts(before + part * count + after)).total() for count in (0, 1000, 2000)]
        assert 1000 <= found[1] - found[0] == found[2] - found[1] <= 3000
        assert found[0] < 30


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "WEBP", "JPEG2000"])
def test_other_formats_have_none(kind):
    assert list(image_parts(encoded(kind))) == []


def test_damage_ends_it():
    random = np.random.default_rng(1)
    for kind in ("JPEG", "PNG", "GIF"):
        whole = encoded(kind)
        for length in range(len(whole)):
            damaged = bytearray(whole[:length])
            if length:
                damaged[random.integers(length)] = random.integers(256)
            assert len(list(image_parts(bytes(damaged)))) <= 2 * length


def test_scans_of_progressive_jpegs_in_a_tiff():
    """Such a TIFF is made from one of a single strip, by other bytes of the same image at the end of the file."""
    whole = encoded("TIFF", compression="jpeg")
    with Image.open(io.BytesIO(whole)) as image:
        place, length = image.tag_v2[273][0], image.tag_v2[279][0]
    assert list(image_parts(whole)) == []
    progressive = encoded("JPEG", progressive=True)
    changed = whole.replace(place.to_bytes(4, "little"), len(whole).to_bytes(4, "little"))
    changed = changed.replace(length.to_bytes(4, "little"), len(progressive).to_bytes(4, "little")) + progressive
    assert Counter(image_parts(changed))["scan"] == 10 + whole.count(b"\xff\xda")
