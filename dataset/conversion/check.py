"""Check images before conversion: each is decoded completely by the decoder that training uses.

Unambiguous defects are fixed: other formats and CMYK are converted to RGB JPEG, a missing end marker is added, stray
bytes between header segments are removed. All other defects are rejected with the reason.
"""

import contextlib
import functools
import io
import re
import struct
import warnings
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image

from dataset.conversion.upright_labels import JPEG_QUALITY, rotated_jpeg
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, LARGEST_IMAGE_PIXELS
from dataset.files.pixel_values import WHITE_LEVEL, as_rgb
from program_support.stderr_capture import captured_stderr

LONGEST_SIDE = 65_500  # limit of libjpeg
MOST_SCANS = 500  # decoding time is proportional to scans times pixels: a small file could take hours

_START_OF_IMAGE, _END_OF_IMAGE, _START_OF_SCAN = 0xD8, 0xD9, 0xDA
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PROGRESSIVE_FRAMES = frozenset({0xC2, 0xCA})
_MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)
_MARKER_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]", re.DOTALL)
# libjpeg replaces unreadable data by gray and reports only a warning.
_DAMAGE = re.compile(
    r"premature end of .*|bad Huffman code|bad arithmetic code|found marker .* instead of .*", re.IGNORECASE
)


class UnusableImage(ValueError):
    """The file is not an image that training can decode completely; the message is the reason."""


class SizeDisagreement(ValueError):
    """The size of the image differs from its annotations; the message contains both."""


@dataclass(frozen=True, kw_only=True)
class CheckedImage:
    """A JPEG that decodes completely to [height, width, 3]; `fix` describes what was changed."""

    encoded: bytes
    height: int
    width: int
    fix: str | None = None


class _Jpeg(NamedTuple):
    """Contents of the markers of a JPEG stream, read without decoding pixels."""

    segments: list[bytes]
    stray_bytes: int
    has_end: bool
    frame: bytes  # the frame header segment, marker included
    scans: list[bytes]  # the scan header segments, marker included

    @property
    def size(self) -> tuple[int, int]:
        height, width = struct.unpack(">HH", self.frame[5:9])
        return height, width

    @property
    def component_ids(self) -> bytes:
        return self.frame[10::3][: self.frame[9]]


def check_image(
    data: bytes,
    *,
    expected_size: tuple[int, int] | None = None,
    orientation: int = 1,
    white_level: int = WHITE_LEVEL,
) -> CheckedImage:
    """Return the image of a file as the JPEG to store.

    `expected_size` is (height, width) in the annotations. `orientation`: the EXIF orientation by which the image is
    rotated upright, 1 if its labels are in stored pixels, as in COCO. `white_level`: see `as_rgb`.

    Raises:
        UnusableImage, SizeDisagreement: the file has another size.
    """
    if orientation == 1:
        return _checked(data, expected_size=expected_size, white_level=white_level)
    stored_size = expected_size[::-1] if expected_size is not None and orientation >= 5 else expected_size
    checked = _checked(data, expected_size=stored_size, white_level=white_level)
    try:
        encoded = rotated_jpeg(checked.encoded, orientation)
    except DECODING_ERRORS as error:
        raise UnusableImage(f"cannot be decoded in full ({_first_line(str(error))})") from error
    height, width = _decoded_size(encoded)
    rotation = f"rotated upright by its EXIF orientation {orientation}, as its labels are"
    fix = f"{checked.fix}; {rotation}" if checked.fix else rotation
    return replace(checked, encoded=encoded, height=height, width=width, fix=fix)


def _checked(data: bytes, *, expected_size: tuple[int, int] | None, white_level: int) -> CheckedImage:
    check_damage_detection()
    if not data:
        raise UnusableImage("the file is empty")
    if data[:2] != bytes((0xFF, _START_OF_IMAGE)):
        return _reencoded(data, expected_size=expected_size, white_level=white_level)
    jpeg = _parse_jpeg(data)
    _check_size(jpeg.size, expected_size)
    if len(jpeg.component_ids) == 4:
        return _reencoded(data, expected_size=expected_size, white_level=white_level)
    encoded, fix = _completed(data, jpeg)
    height, width = _decoded_size(encoded)
    return CheckedImage(encoded=encoded, height=height, width=width, fix=fix)


def _check_size(size: tuple[int, int], expected_size: tuple[int, int] | None) -> None:
    height, width = size
    if not height or not width:
        raise UnusableImage(f"its header claims {width}x{height} pixels")
    if height * width > LARGEST_IMAGE_PIXELS:
        raise UnusableImage(f"its header claims {width}x{height} pixels; the limit is {LARGEST_IMAGE_PIXELS}")
    if expected_size is not None and size != expected_size:
        hint = " (width and height are swapped)" if size == expected_size[::-1] else ""
        raise SizeDisagreement(
            f"the file holds {width}x{height} pixels, the annotations say {expected_size[1]}x{expected_size[0]}{hint}"
        )


def _parse_jpeg(data: bytes) -> _Jpeg:
    segments, stray_bytes, position, has_end = [], 0, 2, False
    frame, scans = b"", []
    while not has_end and (match := _MARKER.search(data, position)):
        marker, start = match[1][0], match.start()
        stray_bytes += start - position
        stop = start + 2
        if marker == _END_OF_IMAGE:
            has_end = True
        elif marker != 0x01 and not 0xD0 <= marker <= 0xD8:  # those have no length
            stop += int.from_bytes(data[stop : stop + 2], "big")
            if stop > len(data) or stop < start + 4:
                raise UnusableImage("cut off inside its header")
        if marker in _FRAME_HEADERS:
            frame = data[start:stop]
        if marker == _START_OF_SCAN:
            scans.append(_scan_header(data[start:stop]))
            after = _MARKER_AFTER_SCAN.search(data, stop)
            stop = after.start() if after else len(data.removesuffix(b"\xff"))
        segments.append(data[start:stop])
        position = stop
    if len(frame) < 10 or not scans:
        raise UnusableImage("cut off inside its header")
    if len(scans) > MOST_SCANS:
        raise UnusableImage(f"{len(scans)} scans, expected at most {MOST_SCANS}")
    return _Jpeg(segments, stray_bytes, has_end, frame, scans)


def _scan_header(segment: bytes) -> bytes:
    """Return the segment if it lists 1 to 4 components and their coefficient range (ITU T.81, B.2.3)."""
    count = segment[4] if len(segment) > 4 else 0
    if not 1 <= count <= 4 or len(segment) != 8 + 2 * count:
        raise UnusableImage("the header of a scan is broken")
    return segment


def _completed(data: bytes, jpeg: _Jpeg) -> tuple[bytes, str | None]:
    """Return the stream without stray bytes and with an end marker, and a description of the changes."""
    fixes = []
    if not jpeg.has_end:
        if not _scans_are_complete(jpeg):
            raise UnusableImage("truncated: scans are missing")
        fixes.append("end marker added")
    if jpeg.stray_bytes:
        # The decoder reports only the first warning, so stray bytes would hide a damaged scan.
        fixes.append(f"stray bytes between header segments dropped ({jpeg.stray_bytes})")
    if not fixes:
        return data, None
    end = b"" if jpeg.has_end else bytes((0xFF, _END_OF_IMAGE))
    return b"".join([data[:2], *jpeg.segments, end]), "; ".join(fixes)


def _scans_are_complete(jpeg: _Jpeg) -> bool:
    """Return whether the scans together contain all bits of all coefficients (ITU T.81, B.2.3 and G.1.1)."""
    coefficients = range(64) if jpeg.frame[1] in _PROGRESSIVE_FRAMES else range(1)
    missing = {(component, k) for component in jpeg.component_ids for k in coefficients}
    for scan in jpeg.scans:
        count = scan[4]
        first, last, bits = scan[5 + 2 * count : 8 + 2 * count]
        if bits & 15 == 0:  # down to the lowest bit
            missing -= {(component, k) for component in scan[5 : 5 + 2 * count : 2] for k in range(first, last + 1)}
    return not missing


def _decoded_size(encoded: bytes) -> tuple[int, int]:
    """Decode a JPEG completely and return (height, width).

    Raises:
        UnusableImage: it is damaged.
    """
    with captured_stderr() as messages:
        try:
            height, width, _ = tf.io.decode_jpeg(encoded, channels=3).shape
        except tf.errors.OpError as error:
            raise UnusableImage(
                f"cannot be decoded in full ({_first_line(messages()) or _first_line(error.message)})"
            ) from error
        damage = _DAMAGE.search(messages())
    if damage:
        raise UnusableImage(f"truncated or damaged ({damage[0].strip()})")
    return height, width


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].split("}} ")[-1][:120]


@functools.cache
def check_damage_detection() -> None:
    """Check that TensorFlow prints libjpeg's warnings, the only sign of a damaged image.

    Raises:
        RuntimeError: it does not: damaged images would be converted.
    """
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = io.BytesIO()
    Image.fromarray(noise).save(whole, "JPEG")
    cut = whole.getvalue()[: len(whole.getvalue()) // 2] + bytes((0xFF, _END_OF_IMAGE))
    with contextlib.suppress(UnusableImage):
        _decoded_size(cut)
        raise RuntimeError(
            f"TensorFlow {tf.__version__} decodes a truncated JPEG without a warning; damaged images cannot be detected"
        )


def _reencoded(data: bytes, *, expected_size: tuple[int, int] | None, white_level: int) -> CheckedImage:
    """Encode the first frame of an image that Pillow reads as RGB JPEG; alpha is dropped, as RGB decoders do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about sizes, which are checked here
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size((image.height, image.width), expected_size)
            if max(image.size) > LONGEST_SIDE:
                raise UnusableImage(f"{image.width}x{image.height} pixels; a JPEG has at most {LONGEST_SIDE} per side")
            stored_as = f"{image.format} {image.mode}"
            rgb = Image.fromarray(as_rgb(image, white_level))
        except (UnusableImage, SizeDisagreement):
            raise
        except Image.UnidentifiedImageError as error:
            raise UnusableImage("is not an image of a known format") from error
        except DECODING_ERRORS as error:
            raise UnusableImage(f"cannot be decoded in full ({_first_line(str(error))})") from error
    buffer = io.BytesIO()
    rgb.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    height, width = _decoded_size(buffer.getvalue())
    return CheckedImage(
        encoded=buffer.getvalue(),
        height=height,
        width=width,
        fix=f"{stored_as} re-encoded as RGB JPEG",
    )
