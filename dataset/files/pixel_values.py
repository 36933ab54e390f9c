"""Pixels of decoded images as uint8 RGB, and the range of images with more than 8 bits; free of TensorFlow."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.files.bounded_files import open_image_file
from dataset.files.image_formats import DECODING_ERRORS, FORMATS

WHITE_LEVEL = 65_535  # the value of images with 16 bits per channel that becomes 255
UNKNOWN_RANGE = "pixels of {} without a known range: convert with --black_level and --white_level"
_MOST_BITS_OF_SENSORS = 14  # larger values use more than a quarter of 16 bits
_READERS = 16


class ValueRange(NamedTuple):
    """The values of pixels with more than 8 bits per channel that become 0 and 255."""

    black: float = 0
    white: float = WHITE_LEVEL


FULL_RANGE = ValueRange()  # of 16 bits; pixels with floats, signs or more bits have no range of their own


def as_rgb(image: Image.Image, value_range: ValueRange = FULL_RANGE) -> np.ndarray:
    """Return the pixels [h, w, 3] uint8. With more than 8 bits per channel, the range becomes 0 to 255.

    Raises:
        ValueError: for pixels of unknown range.
    """
    if image.mode.startswith(("I", "F")):
        values = np.asarray(image)  # Pillow would clip values above 255
        is_of_16_bits = image.mode != "F" and values.min() >= 0 and values.max() <= WHITE_LEVEL
        if value_range == FULL_RANGE and not is_of_16_bits:
            raise ValueError(UNKNOWN_RANGE.format(f"mode {image.mode}"))
        values = np.repeat(values[..., None], 3, axis=-1)
    elif value_range != FULL_RANGE and _is_of_16_bits(image):
        values = _colors_of_16_bits(image)
    else:
        return np.asarray(image.convert("RGB"))
    return bytes_of_values(values, value_range)


def bytes_of_values(values: np.ndarray, value_range: ValueRange) -> np.ndarray:
    """Return values as uint8: 0 up to the black one, 255 from the white one on; NaN is 0."""
    black, white = value_range
    shares = (np.clip(np.nan_to_num(values, nan=black), black, white) - black) / ((white - black) / 255)
    return np.round(shares).astype(np.uint8)


def _is_of_16_bits(image: Image.Image) -> bool:
    packing = [
        tile[3] if isinstance(tile[3], str) else str(tile[3][0]) for tile in getattr(image, "tile", ()) if tile[3]
    ]
    return image.mode.startswith("I") or any(";16" in name for name in packing)


def _colors_of_16_bits(image: Image.Image) -> np.ndarray:
    """Decode an opened file to [h, w, 3] uint16; Pillow keeps the upper 8 bits only.

    Raises:
        ValueError: the file is closed, or OpenCV does not read it.
    """
    import cv2

    file = getattr(image, "fp", None)
    if file is None:
        raise ValueError("its file is closed")
    file.seek(0)
    pixels = cv2.imdecode(np.frombuffer(file.read(), np.uint8), cv2.IMREAD_ANYDEPTH | cv2.IMREAD_COLOR_RGB)
    if pixels is None or pixels.dtype != np.uint16:
        raise ValueError("16 bits per channel that OpenCV does not read")
    return pixels


def value_range_for(
    paths: Iterable[str | os.PathLike[str]],
    *,
    log: Callable[[str], None] = lambda line: None,
    in_order: bool = False,
) -> ValueRange:
    """Return the range of a data set, and log a warning of one: all bits of the largest value in 16-bit images.

    0 to 65535 without such images, and if the largest value has 15 or 16 bits. Files that cannot be decoded
    are ignored. in_order: open each file before the next path is taken.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(_READERS) as pool:
        warnings.simplefilter("ignore")  # they concern metadata; set here, as the filters belong to all threads
        largest = max((map if in_order else pool.map)(_largest_in_file, paths), default=-1)
    bits = max(8, largest.bit_length())
    if largest < 0 or bits > _MOST_BITS_OF_SENSORS:
        return FULL_RANGE
    level = (1 << bits) - 1
    log(
        f"warning: images with 16 bits per channel have {largest} as their largest value: {level} becomes white, also "
        "in the inference of models trained on these records (hyperparameter white_level); set --white_level for "
        "another value"
    )
    return ValueRange(white=level)


def _largest_in_file(path: str | os.PathLike[str]) -> int:
    """Return the largest value of an image of 16 bits per channel, about that for colors; -1 for other files."""
    with contextlib.suppress(*DECODING_ERRORS), open_image_file(path) as file:
        image = Image.open(file, formats=FORMATS)
        if _is_of_16_bits(image):
            # Pillow keeps the upper 8 bits of colors
            return int(np.asarray(image).max()) * (1 if image.mode.startswith("I") else 257)
    return -1
