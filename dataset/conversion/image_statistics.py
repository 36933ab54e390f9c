"""Brightness statistics of images and detection of identical images, with one decoding per image."""

import contextlib
import hashlib
import io
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.conversion.near_duplicates import thumbnail
from dataset.files.image_files import stored_size
from dataset.files.image_formats import DECODING_ERRORS, FORMATS
from dataset.files.pixel_values import as_rgb
from dataset.records.labeled_images import LabeledImages
from program_support.errors import InputError
from program_support.processor import available_cores

_MOST_SIDE = 256  # pixels of the longer side; JPEGs are decoded at the smallest sufficient scale


class ImageStatistics(NamedTuple):
    """Stored height and width of an image, and mean and standard deviation of its gray levels (0 to 255)."""

    digest: bytes
    size: tuple[int, int]
    thumbnail: np.ndarray
    brightness: float
    contrast: float


def measure_images(
    images: LabeledImages, numbers: Iterable[int], *, done: Callable[[], None] = lambda: None
) -> dict[int, ImageStatistics | None]:
    """Return statistics of the images with these numbers, None for undecodable ones. `done` is called after each."""
    numbers = [int(number) for number in numbers]
    statistics = {}
    with ThreadPoolExecutor(available_cores()) as pool:
        for number, measured in zip(
            numbers, pool.map(lambda number: _measured(images.encoded, number), numbers), strict=True
        ):
            statistics[number] = measured
            done()
    return statistics


def decode_reduced(encoded: bytes, side: int) -> np.ndarray:
    """Decode an image, reduced to at most `side` pixels: uint8 [h, w, 3].

    Raises:
        ValueError: undecodable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(encoded), formats=FORMATS) as file:
                file.draft("RGB", (side, side))
                image = Image.fromarray(as_rgb(file))
            image.thumbnail((side, side))
            return np.asarray(image)
        except DECODING_ERRORS as error:
            raise ValueError("cannot be decoded") from error


def _measured(encoded: Callable[[int], bytes], number: int) -> ImageStatistics | None:
    with contextlib.suppress(ValueError, OSError, InputError):
        data = encoded(number)
        pixels = decode_reduced(data, _MOST_SIDE)
        gray = pixels.mean(axis=-1)
        return ImageStatistics(
            digest=hashlib.sha256(data).digest(),
            size=stored_size(data),
            thumbnail=thumbnail(pixels),
            brightness=float(gray.mean()),
            contrast=float(gray.std()),
        )
    return None
