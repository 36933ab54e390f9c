"""What counts as an image wherever one is opened: a format whose decoder starts no program."""

import struct
import zlib

from PIL import ExifTags, Image

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "TIFF", "WEBP")  # Pillow alone would start Ghostscript for an EPS
LARGEST_IMAGE_PIXELS = 178_956_970  # as Pillow's own guard: half a GiB of RGB
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, struct.error, zlib.error,
                   OverflowError, MemoryError, Image.DecompressionBombError)  # what damage makes Pillow raise


def exif_orientation(image: Image.Image) -> int:
    """How a viewer turns the stored pixels, 1 (not at all) to 8 (EXIF 2.32, tag 0x0112); 1 where the tag is unreadable."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODING_ERRORS:
        return 1
    return orientation if orientation in range(1, 9) else 1
