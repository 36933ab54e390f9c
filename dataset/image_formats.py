"""What counts as an image file wherever one is opened: a regular file in a format whose decoder starts no program."""

import errno
import os
import stat
import struct
import zlib
from typing import BinaryIO

from PIL import ExifTags, Image

FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "TIFF", "WEBP")  # Pillow alone would start Ghostscript for an EPS
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, struct.error, zlib.error,
                   OverflowError, MemoryError, Image.DecompressionBombError)  # what damage makes Pillow raise


def open_regular_file(path: str | os.PathLike) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a pipe or a device, which could be waited for or read for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would otherwise wait for its writer
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return open(descriptor, "rb")


def exif_orientation(image: Image.Image) -> int:
    """How a viewer turns the stored pixels, 1 (not at all) to 8 (EXIF 2.32, tag 0x0112); 1 where the tag is unreadable."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except DECODING_ERRORS:
        return 1
    return orientation if orientation in range(1, 9) else 1
