"""Thousands of damaged images and masks: each is converted, or refused or reported with a reason.

Never another exception, an end of the process or a hang: one case that takes longer than `SECONDS` ends the process
with the stack of where it hangs. A case is a function of seed and number; the file `case` in the folder of the test
names the last.

    FUZZ_CASES=50000 FUZZ_SEED=7 python -m pytest tests/test_fuzz_conversion.py
"""

import faulthandler
import io
import os
import random

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_mask

from dataset.conversion import convert
from dataset.conversion.convert import SizeDisagreement, UnusableImage, check_image
from dataset.conversion.segmentation import UnusableSegmentation, check_segmentation, mask_png

CASES, SEED = int(os.environ.get("FUZZ_CASES", "0")), os.environ.get("FUZZ_SEED", "1")
SECONDS = 60
HEIGHT, WIDTH = 48, 64


@pytest.fixture
def run(tmp_path):
    """A function that calls another with a random generator for each of so many cases."""

    def of_all(one_case, count):
        with open(tmp_path / "case", "wb") as last:
            for number in range(CASES or count):
                os.pwrite(last.fileno(), f"seed {SEED}, case {number}\n".encode(), 0)
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                try:
                    one_case(random.Random(f"{SEED}/{number}"))
                except Exception as error:
                    raise AssertionError(
                        f"seed {SEED}, case {number}: {type(error).__name__}: {error}"[:500]
                    ) from error

    yield of_all
    faulthandler.cancel_dump_traceback_later()


def one_line(error):
    """What the message of a refusal must be: short, without a line break, fit for a terminal and a report in UTF-8."""
    message = str(error).encode().decode()
    assert 0 < len(message) < 1500, len(message)
    assert message.isprintable(), message


def photo():
    pixels = np.random.default_rng(3).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return Image.fromarray(pixels).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)


def encoded(image_format, mode="RGB", **settings):
    buffer = io.BytesIO()
    photo().convert(mode).save(buffer, image_format, **settings)
    return buffer.getvalue()


def mutated(data, draw):
    """Bytes with a few bits flipped, parts cut, doubled, overwritten or moved, or JPEG markers put in."""
    data = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4, 16))):
        at, length = draw.randrange(len(data) + 1), int(draw.expovariate(0.05)) + 1
        start = draw.randrange(len(data) + 1)
        flipped = bytes(byte ^ 1 << draw.randrange(8) for byte in data[at : at + 1])
        marker = bytes((0xFF, draw.choice((0xC0, 0xC2, 0xC4, 0xD9, 0xDA, 0xDB, 0xD8, 0xE1))))
        filled = bytes([draw.choice((0, 255, 32))]) * length
        edits = [(flipped, at + 1), (b"", len(data)), (b"", at + length), (data[start : start + length], at)]
        new, end = draw.choice([*edits, (filled, at + length), (marker, at + draw.randrange(3))])
        data[at:end] = new
    return bytes(data)


def with_edited_segment(data, draw):
    """A JPEG of which one header segment has another length, or another byte near its begin."""
    data = bytearray(data)
    starts = [
        at
        for at in range(2, len(data) - 4)
        if data[at] == 0xFF and 0xC0 <= data[at + 1] < 0xFF and not 0xD0 <= data[at + 1] <= 0xD9
    ]
    at = draw.choice(starts)
    if draw.random() < 0.5:
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        data[at + 2 : at + 4] = max(0, length + draw.randint(-8, 8)).to_bytes(2, "big")
    else:
        where = min(at + 4 + draw.randrange(12), len(data) - 1)
        data[where] = draw.choice((0, 1, 3, 4, 5, 63, 64, 255))
    return bytes(data[: len(data) - 2 * draw.randrange(2)])  # half of them without an end marker


def originals():
    return [
        encoded("JPEG"),
        encoded("JPEG", progressive=True),
        encoded("JPEG", "CMYK"),
        encoded("JPEG", "L", quality=30),
        encoded("PNG"),
        encoded("PNG", "P"),
        encoded("PNG", "I;16"),
        encoded("GIF"),
        encoded("BMP"),
        encoded("TIFF"),
        encoded("TIFF", compression="tiff_lzw"),
        encoded("WEBP"),
        encoded("JPEG2000"),
    ]


def test_images(run, monkeypatch):
    monkeypatch.setattr(convert, "LARGEST_IMAGE_PIXELS", 10**6)  # a header that claims more would cost a second each
    whole = originals()

    def one_case(draw):
        data = draw.choice(whole[:4] if draw.random() < 0.6 else whole)
        if data[:2] == b"\xff\xd8" and draw.random() < 0.5:
            data = with_edited_segment(data, draw)
        if draw.random() < 0.1:
            other = draw.choice(whole)
            data = data[: draw.randrange(len(data))] + other[draw.randrange(len(other)) :]
        if draw.random() < 0.8:
            data = mutated(data, draw)
        try:
            checked = check_image(data, expected_size=draw.choice(((HEIGHT, WIDTH), None)))
        except (UnusableImage, SizeDisagreement) as error:
            one_line(error)
            return
        decoded = cv2.imdecode(
            np.frombuffer(checked.encoded, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
        )
        assert decoded.shape == (checked.height, checked.width, 3)

    run(one_case, 1200)


COMPRESSED = coco_mask.encode(np.asfortranarray(np.eye(HEIGHT, WIDTH, dtype=np.uint8)))["counts"].decode()


ODD_NUMBERS = (0, -1, 64, 1e7, -1e9, 1e300, 10**400, 2**32, 0.5, float("nan"), float("inf"), True, None, "1", [1])


def segmentation(draw):
    """Polygons, run lengths or compressed run lengths, often with an odd number, size or type."""
    if draw.random() < 0.5:
        numbers = [
            draw.uniform(-200, 300) * draw.choice((1, 1, 1e3, 1e6)) for _ in range(draw.choice((6, 6, 8, 20, 3)))
        ]
        numbers += [draw.choice(ODD_NUMBERS)] * draw.choice((0, 0, 2))
        return [numbers] * draw.choice((1, 1, 2, 0))
    counts = [draw.randrange(200) for _ in range(draw.randrange(30))]
    counts.append(draw.choice((HEIGHT * WIDTH - sum(counts), draw.choice(ODD_NUMBERS))))
    text = "".join(chr(draw.randrange(48, 112)) for _ in range(draw.randrange(40)))
    compressed = mutated(COMPRESSED.encode(), draw).decode("latin-1")
    size = draw.choice(([HEIGHT, WIDTH], [HEIGHT, WIDTH], [WIDTH, HEIGHT], [48.0, 64], [True, 2], "48", None))
    given = {"size": size, "counts": draw.choice((counts, text, compressed, "\u00e9", "\ud800"))}
    return draw.choice((given, given, given, {"counts": text}, text, None, 7, {}, [[]], [{}], [None]))


def test_masks(run):
    def one_case(draw):
        try:
            given = segmentation(draw)
            check_segmentation(given)
            png = mask_png(given, (HEIGHT, WIDTH))
        except UnusableSegmentation as error:
            one_line(error)
            return
        pixels = np.asarray(Image.open(io.BytesIO(png)))
        assert pixels.shape == (HEIGHT, WIDTH)
        assert set(np.unique(pixels)) <= {0, 1}

    run(one_case, 2000)
