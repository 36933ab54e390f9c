"""The parts of an encoded image: decoding time depends on their number, not only on the size of the file."""

import contextlib
import io
import itertools
import re
from collections.abc import Iterator

from PIL import Image

from dataset.files.image_formats import DECODING_ERRORS

# Next marker of a JPEG with content, or its end
_JPEG_NEXT = re.compile(rb"(?:[^\xff]*+\xff++[\x00\x01\xd0-\xd8])*+[^\xff]*+\xff++(.)", re.DOTALL)
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_PNG_HEAD = b"\x89PNG\r\n\x1a\n"
_TIFF_HEADS = b"II", b"MM"
_PROGRESSIVE = b"\xff\xc2", b"\xff\xca"  # Huffman and arithmetic coding
_GIF_EXTENSION, _GIF_FIRST_IMAGE, _GIF_END = 0x21, 0x2C, 0x3B


def image_parts(encoded: bytes) -> Iterator[str]:
    """Yield "scan" or "segment" for each part of a JPEG's first image, "part" for those of a PNG and of a GIF's header.

    Decoders find the parts in the same way, also in damaged files. Of a TIFF the scans of progressive JPEGs are
    yielded. Nothing is yielded for other formats, whose decoding time is proportional to bytes and pixels.
    """
    if encoded.startswith(b"\xff\xd8"):
        yield from _jpeg_parts(encoded)
    elif encoded.startswith(_PNG_HEAD):
        yield from _png_parts(encoded)
    elif encoded.startswith(b"GIF"):
        yield from _gif_parts(encoded)
    elif encoded.startswith(_TIFF_HEADS):
        yield from _tiff_parts(encoded)


def _jpeg_parts(encoded: bytes) -> Iterator[str]:
    """Yield marker segments (ITU-T T.81, B.1.1) and, before the first scan, fill bytes, which Pillow reads one by one.

    In a scan a 0 follows each byte 0xFF.
    """
    place, in_scan = 2, False
    while place < len(encoded):
        marker = _JPEG_NEXT.match(encoded, place)
        kind, end = (marker[1][0], marker.end()) if marker else (_JPEG_END, len(encoded))
        if not in_scan:
            yield from itertools.repeat("segment", end - place - 1)
        if kind == _JPEG_END:
            return
        in_scan = kind == _JPEG_SCAN or in_scan
        yield "scan" if kind == _JPEG_SCAN else "segment"
        place = end + int.from_bytes(encoded[end : end + 2])


def _png_parts(encoded: bytes) -> Iterator[str]:
    """Yield a part for each chunk: length, type, content, checksum."""
    place = len(_PNG_HEAD)
    while place < len(encoded):
        yield "part"
        place += 12 + int.from_bytes(encoded[place : place + 4])


def _gif_parts(encoded: bytes) -> Iterator[str]:
    """Yield a part for each block of the extensions before the first image, and for each byte between them."""
    place = 13 + (3 << (encoded[10] & 7) + 1 if encoded[10:11] > b"\x7f" else 0)  # the head and its colors precede it
    while place < len(encoded) and encoded[place] not in (_GIF_FIRST_IMAGE, _GIF_END):
        yield "part"
        is_extension = encoded[place] == _GIF_EXTENSION
        place += 2 if is_extension else 1
        while is_extension and place < len(encoded) and encoded[place]:
            yield "part"
            place += 1 + encoded[place]


def _tiff_parts(encoded: bytes) -> Iterator[str]:
    """Yield the scans of progressive JPEGs; strips may share the bytes of one."""
    with contextlib.suppress(*DECODING_ERRORS), Image.open(io.BytesIO(encoded), formats=("TIFF",)) as image:
        is_jpeg = image.info.get("compression") in ("jpeg", "tiff_jpeg")
        if is_jpeg and any(marker in encoded for marker in _PROGRESSIVE):
            yield from itertools.repeat("scan", encoded.count(bytes([0xFF, _JPEG_SCAN])))
