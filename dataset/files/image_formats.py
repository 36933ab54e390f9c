"""Supported image formats, those whose decoder starts no other program, the header of TIFF files, and image parts.

The header is read without a decoder, to judge what a file claims. Format: TIFF 6.0, section 2; BigTIFF:
http://bigtiff.org. Decoding time depends on the number of parts of an encoded image, not only on the size of its file.
"""

import contextlib
import io
import itertools
import os
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image, features

_WIDTH, _HEIGHT, _PHOTOMETRIC, _ORIENTATION, _BANDS = 256, 257, 262, 274, 277
_BYTES_OF_KINDS = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4), start=1)) | {16: 8, 17: 8, 18: 8}
_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}  # kinds of the tags that are read
_LARGEST_TAG_BYTES = 2**26
_LARGEST_SIDE = 2**31 - 1
_LARGEST_OFFSET = 2**63
_MOST_TAGS = 1024  # of a directory
_MOST_DIRECTORIES = 4096


class TiffHeader(NamedTuple):
    """Properties of the first image in a TIFF file, as its header states them."""

    width: int
    height: int
    bands: int
    photometric: int
    orientation: int  # EXIF orientation, 1 (as stored) .. 8
    directories: int  # images and overviews, as far as they are counted
    tag_bytes: int  # the largest tag
    file_bytes: int

    @property
    def pixels(self) -> int:
        """Return the number of pixels."""
        return self.width * self.height

    def refusal(self, *, most_pixels: int) -> str:
        """Return why the file is not decoded, "" if nothing is wrong with its header."""
        if not (0 < self.width <= _LARGEST_SIDE and 0 < self.height <= _LARGEST_SIDE and self.pixels <= most_pixels):
            return f"a TIFF of {self.width} x {self.height} pixels; the limit is {most_pixels} pixels"
        if self.tag_bytes > (limit := min(self.file_bytes, _LARGEST_TAG_BYTES)):
            return f"a TIFF with a tag of {self.tag_bytes} bytes in a file of {self.file_bytes}; the limit is {limit}"
        if self.directories > _MOST_DIRECTORIES:
            return f"a TIFF of more than {_MOST_DIRECTORIES} images and overviews"
        return ""


def read_tiff_header(file: BinaryIO) -> TiffHeader | None:
    """Return what the first directory of a file says, None for files of other formats.

    Raises:
        ValueError: the directory is cut off.
    """
    head = file.read(16)
    order = {b"II": "<", b"MM": ">"}.get(head[:2], "")
    version = struct.unpack(f"{order}H", head[2:4])[0] if order and len(head) == 16 else 0
    if version not in (42, 43):
        return None
    is_big = version == 43
    (offset,) = struct.unpack_from(order + ("Q" if is_big else "I"), head, 8 if is_big else 4)
    file_bytes = file.seek(0, os.SEEK_END)
    first: list[tuple[int, int, int, bytes]] = []
    directories = tag_bytes = 0
    for entries in islice(_directories(file, order, offset, is_big=is_big), _MOST_DIRECTORIES + 1):
        first = first or entries
        directories += 1
        tag_bytes = max(tag_bytes, *(values * _BYTES_OF_KINDS.get(kind, 1) for _, kind, values, _ in entries))
    if not first:
        raise ValueError(
            f"the directory of the TIFF at byte {offset} is cut off or has more than {_MOST_TAGS} tags: the file has "
            f"{file_bytes} bytes"
        )
    numbers = {_BANDS: 1, _PHOTOMETRIC: 1, _ORIENTATION: 1}
    for tag, kind, _, content in first:
        if kind in _NUMBERS and _BYTES_OF_KINDS[kind] <= len(content):  # a damaged one may name BigTIFF's long numbers
            numbers[tag] = struct.unpack_from(order + _NUMBERS[kind], content)[0]
    orientation = numbers[_ORIENTATION]
    return TiffHeader(
        width=numbers.get(_WIDTH, 0),
        height=numbers.get(_HEIGHT, 0),
        bands=numbers[_BANDS],
        photometric=numbers[_PHOTOMETRIC],
        orientation=orientation if orientation in range(1, 9) else 1,
        directories=directories,
        tag_bytes=tag_bytes,
        file_bytes=file_bytes,
    )


def _directories(
    file: BinaryIO, order: str, offset: int, *, is_big: bool
) -> Iterator[list[tuple[int, int, int, bytes]]]:
    """Yield tag, type, number of values and value of each entry, of one complete directory after another."""
    place, length, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    while 0 < offset < _LARGEST_OFFSET:
        file.seek(offset)
        try:
            (count,) = struct.unpack(order + length, file.read(struct.calcsize(order + length)))
            content = file.read(min(count, _MOST_TAGS) * struct.calcsize(order + entry))
            entries = [*struct.iter_unpack(order + entry, content)]
            following = file.read(struct.calcsize(order + place))
        except struct.error:
            return
        if not entries or len(entries) < count:
            return
        yield entries
        offset = struct.unpack(order + place, following)[0] if len(following) == struct.calcsize(order + place) else 0


def note_of_unread_tiff(file: BinaryIO) -> str:
    """Return what to do with a TIFF that Pillow does not know, such as one of five bands; "" for other formats."""
    try:
        file.seek(0)
        header = read_tiff_header(file)
    except (OSError, ValueError) as error:
        return str(error)
    if header is None:
        return ""
    return (
        f"a TIFF of {header.bands} bands whose kind of pixels is not read in images of this size; save three bands "
        "of 8 bits: gdal_translate -ot Byte -scale -b 1 -b 2 -b 3 OLD.tif NEW.tif"
    )


READS_AVIF = features.check("avif") is True  # Pillow 11.3 and later, as far as it was built with libavif
FORMATS: tuple[str, ...] = (
    "BMP",
    "GIF",
    "JPEG",
    "JPEG2000",
    "PNG",
    "TIFF",
    "WEBP",
)  # Pillow would start Ghostscript for EPS
FORMATS += ("AVIF",) if READS_AVIF else ()
LARGEST_IMAGE_PIXELS = 178_956_970  # Pillow's own limit: half a GiB of RGB
DECODING_ERRORS = (  # that Pillow raises for damaged files
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    EOFError,
    struct.error,
    zlib.error,
    OverflowError,
    MemoryError,
    RuntimeError,  # raised by AVIF
    Image.DecompressionBombError,
)


def exif_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 (as stored) to 8 (EXIF 2.32, tag 0x0112); 1 if the tag is unreadable."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODING_ERRORS:
        return 1
    return orientation if orientation in range(1, 9) else 1


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
