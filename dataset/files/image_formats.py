"""Supported image formats, those whose decoder starts no other program, the header of TIFF files, and image parts.

The header is read without a decoder, to judge what a file claims. Decoding time depends on the number of parts of an
encoded image, not only on the size of its file.
"""

import contextlib
import io
import itertools
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image, TiffImagePlugin, features

_TIFF_DEFAULTS = {256: None, 257: None, 277: 1, 262: 1, 274: 1}  # tags: width, height, bands, photometric, orientation
_BIG = 43  # version of BigTIFF
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0")


class TiffHeader(NamedTuple):
    """Properties of the first image in a TIFF file, as its header states them."""

    width: int
    height: int
    bands: int
    photometric: int
    orientation: int  # EXIF orientation, 1 (as stored) .. 8

    @property
    def pixels(self) -> int:
        """Return the number of pixels."""
        return self.width * self.height


def read_tiff_header(file: BinaryIO) -> TiffHeader | None:
    """Return what the first directory of a file says, None for files of other formats.

    Raises:
        ValueError: the directory is cut off, or a tag is larger than the file.
    """
    head = file.read(16)
    if len(head) < 16 or not head.startswith(_TIFF_STARTS):
        return None
    directory = TiffImagePlugin.ImageFileDirectory_v2(head if head[2] == _BIG else head[:8])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about tags that are not used here
        warnings.filterwarnings("error", message="Tag data larger than file")
        try:
            file.seek(directory.next)
            directory.load(file)
            numbers = [directory.get(tag, default) for tag, default in _TIFF_DEFAULTS.items()]
        except (UserWarning, *DECODING_ERRORS) as error:
            raise ValueError(f"the directory of the TIFF is damaged: {error}") from error
    if not all(isinstance(number, int) for number in numbers):
        raise ValueError("the directory of the TIFF is cut off or has no size")
    header = TiffHeader(*numbers)
    return header if header.orientation in range(1, 9) else header._replace(orientation=1)


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
