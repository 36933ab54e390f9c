"""Check images before conversion: each JPEG is decoded completely and strictly, as libjpeg fills damage with gray.

Unambiguous defects are fixed: other formats and CMYK are converted to RGB JPEG, a missing end marker is added, stray
bytes between header segments are removed. All other defects are rejected with the reason.
"""

import io
import re
import warnings
from dataclasses import dataclass, replace

import simplejpeg
import tensorflow as tf
from PIL import Image

from dataset.conversion.upright_labels import JPEG_QUALITY, rotated_jpeg
from dataset.files.image_files import encode_image
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, LARGEST_IMAGE_PIXELS, note_of_unread_tiff
from dataset.files.image_parts import image_parts
from dataset.files.image_windows import open_windows
from dataset.files.pixel_values import FULL_RANGE, ValueRange, as_rgb
from program_support.errors import InputError

LONGEST_SIDE = 65_500  # limit of libjpeg
MOST_SCANS = 500  # decoding time is proportional to scans times pixels: a small file could take hours

_MARKER = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)
_START_OF_SCAN, _END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
_APPLICATION_SEGMENTS = range(0xE0, 0xF0)
_AFTER_THE_LAST_PIXEL = "extraneous bytes before marker 0xd9"  # a harmless warning


class UnusableImage(ValueError):
    """The file is not an image that training can decode completely; the message is the reason."""


class SizeDisagreement(ValueError):
    """The size of the image differs from its annotations; the message contains both."""


@dataclass(frozen=True, kw_only=True)
class CheckedImage:
    """A JPEG that decodes completely to [height, width, 3]; `fix` describes what was changed.

    `sha256`: of the file that it is from, "" for a part of one.
    """

    encoded: bytes
    height: int
    width: int
    fix: str | None = None
    sha256: str = ""


def check_image(
    data: bytes,
    *,
    expected_size: tuple[int, int] | None = None,
    orientation: int = 1,
    value_range: ValueRange = FULL_RANGE,
) -> CheckedImage:
    """Return the image of a file as the JPEG to store.

    `expected_size` is (height, width) in the annotations. `orientation`: the EXIF orientation by which the image is
    rotated upright, 1 if its labels are in stored pixels, as in COCO. `value_range`: see `as_rgb`.

    Raises:
        UnusableImage, SizeDisagreement: the file has another size.
    """
    is_transposed = orientation >= 5
    stored_size = expected_size[::-1] if expected_size and is_transposed else expected_size
    checked = _checked(data, expected_size=stored_size, value_range=value_range)
    if orientation == 1:
        return checked
    rotation = f"rotated upright by its EXIF orientation {orientation}, as its labels are"
    return replace(
        checked,
        encoded=rotated_jpeg(checked.encoded, orientation),
        height=checked.width if is_transposed else checked.height,
        width=checked.height if is_transposed else checked.width,
        fix=f"{checked.fix}; {rotation}" if checked.fix else rotation,
    )


def check_part(path: str, part: tuple[int, int, int, int], *, value_range: ValueRange) -> CheckedImage:
    """Return the window `part` (top, left, bottom, right) of a file as the JPEG to store.

    Raises:
        UnusableImage: it cannot be read.
    """
    try:
        with open_windows(path, value_range=value_range) as image:
            pixels, note = image.read(*part), image.note
    except InputError as error:
        raise UnusableImage(str(error).removeprefix(f"{path}: ")) from error
    encoded = encode_image(pixels, "JPEG", quality=JPEG_QUALITY)
    return CheckedImage(encoded=encoded, height=pixels.shape[0], width=pixels.shape[1], fix=note or None)


def _checked(data: bytes, *, expected_size: tuple[int, int] | None, value_range: ValueRange) -> CheckedImage:
    if not data:
        raise UnusableImage("the file is empty")
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # another format, or a JPEG with an unusual subsampling
        return _reencoded(data, expected_size=expected_size, value_range=value_range)
    _check_size((height, width), expected_size)
    if colors in ("CMYK", "YCCK"):
        return _reencoded(data, expected_size=expected_size, value_range=value_range)
    scans = sum(part == "scan" for part in image_parts(data))
    if scans > MOST_SCANS:
        raise UnusableImage(f"{scans} scans, expected at most {MOST_SCANS}")
    segments, rest = _header_and_scans(data)
    fixes = []
    if stray_bytes := len(data) - sum(map(len, segments)) - len(rest):
        fixes.append(f"stray bytes between header segments dropped ({stray_bytes})")
    # libjpeg reports only its first warning: those about application segments would hide damage
    bare = b"".join(segment for segment in segments if segment[1] not in _APPLICATION_SEGMENTS)
    damage = _damage(bare + rest)
    if damage and (scans == 1 or rest.endswith(b"\xff")):  # otherwise scans may be missing
        completed = rest.removesuffix(b"\xff") + _END_OF_IMAGE
        if not _damage(bare + completed):
            rest, damage = completed, None
            fixes.insert(0, "end marker added")
    if damage:
        raise UnusableImage(f"truncated or damaged ({damage})")
    return CheckedImage(encoded=b"".join([*segments, rest]), height=height, width=width, fix="; ".join(fixes) or None)


def _header_and_scans(encoded: bytes) -> tuple[list[bytes], bytes]:
    """Return the segments of a JPEG before its first scan, without bytes between them, and the rest."""
    segments, end = [encoded[:2]], 2
    while (marker := _MARKER.search(encoded, end)) and marker[0] != _START_OF_SCAN:
        end = marker.end() + int.from_bytes(encoded[marker.end() : marker.end() + 2])
        segments.append(encoded[marker.start() : end])
    return segments, encoded[marker.start() if marker else end :]


def _damage(encoded: bytes) -> str | None:
    """Return what prevents a complete decoding of a JPEG, here or in training; None for an intact one."""
    try:
        tf.io.extract_jpeg_shape(encoded)  # refuses what only newer versions of libjpeg decode
        simplejpeg.decode_jpeg(encoded)
    except (ValueError, tf.errors.OpError) as error:
        return None if _AFTER_THE_LAST_PIXEL in str(error) else _first_line(str(error))
    return None


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


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].split("}} ")[-1][:120]


def _reencoded(data: bytes, *, expected_size: tuple[int, int] | None, value_range: ValueRange) -> CheckedImage:
    """Encode the first frame of an image that Pillow reads as RGB JPEG; alpha is dropped, as RGB decoders do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about sizes, which are checked here
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size((image.height, image.width), expected_size)
            if max(image.size) > LONGEST_SIDE:
                raise UnusableImage(f"{image.width}x{image.height} pixels; a JPEG has at most {LONGEST_SIDE} per side")
            stored_as = f"{image.format} {image.mode}"
            rgb = Image.fromarray(as_rgb(image, value_range))
        except (UnusableImage, SizeDisagreement):
            raise
        except Image.UnidentifiedImageError as error:
            raise UnusableImage(note_of_unread_tiff(io.BytesIO(data)) or "is not an image of a known format") from error
        except DECODING_ERRORS as error:
            raise UnusableImage(f"cannot be decoded in full ({_first_line(str(error))})") from error
    buffer = io.BytesIO()
    rgb.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return CheckedImage(
        encoded=buffer.getvalue(),
        height=rgb.height,
        width=rgb.width,
        fix=f"{stored_as} re-encoded as RGB JPEG",
    )
