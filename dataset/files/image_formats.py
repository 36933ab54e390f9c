"""Supported image formats: those whose decoder starts no other program."""

import struct
import zlib

from PIL import ExifTags, Image, features

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
