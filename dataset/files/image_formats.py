"""Supported image formats, those whose decoder starts no other program, and the header of TIFF files.

The header is read without a decoder, to judge what a file claims.
"""

import struct
import warnings
import zlib
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
