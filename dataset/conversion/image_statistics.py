"""Thumbnails and digests of images, with one decoding per image, and the near-duplicates among them.

Near-duplicates are copies at another size, quality or brightness, and consecutive frames of a video. Two thumbnails
must meet two conditions. Their difference hashes (which cells are brighter than the cell to their left) differ in at
most `MOST_BITS` of 256 bits, and their cells have a correlation of at least `LEAST_CORRELATION`. The hash alone is not
sufficient: in images with plain areas, such as documents or night scenes, most bits are 0 in any case.
"""

import contextlib
import hashlib
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.files.image_files import stored_size
from dataset.files.image_formats import DECODING_ERRORS, FORMATS
from dataset.files.pixel_values import as_rgb
from dataset.records.labeled_records import LabeledImages
from program_support.errors import InputError
from program_support.processor import available_cores

HASH_SIDE = 16  # cells; with 8 the hashes of some different photos are closer than those of copies
HASH_BITS = HASH_SIDE * HASH_SIDE
MOST_BITS = 32
LEAST_CORRELATION = 0.9  # copies of other brightness or contrast have 0.97, frames shifted by 1% of their width 0.94
LEAST_CONTRAST = 2.0  # gray levels, standard deviation of the cells; below it they show noise and vignetting
_PAIRS_AT_ONCE = 1 << 22  # 16 MiB for each of two products
_MOST_SIDE = 256  # pixels of the longer side; JPEGs are decoded at the smallest sufficient scale


class ImageStatistics(NamedTuple):
    """SHA-256 of a file, stored height and width of its image, and thumbnail."""

    digest: bytes
    size: tuple[int, int]
    thumbnail: np.ndarray


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
        return ImageStatistics(
            digest=hashlib.sha256(data).digest(),
            size=stored_size(data),
            thumbnail=thumbnail(pixels),
        )
    return None


def thumbnail(image: np.ndarray) -> np.ndarray:
    """Return the gray cells, uint8 [HASH_SIDE, HASH_SIDE + 1], of an RGB image uint8 [h, w, 3] of any size."""
    luminance = Image.fromarray(image).convert("L")
    return np.asarray(luminance.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX))


def near_duplicates(thumbnails: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Return pairs (i, j) of indices of near-duplicates, i < j, in ascending order.

    All pairs are compared, by matrix products: 2 s of a core for 10,000 images, 100 times as long for 100,000.
    """
    cells = np.array(thumbnails, np.float32).reshape(-1, HASH_SIDE, HASH_SIDE + 1)
    # a product of two rows is the number of equal bits minus the number of different bits
    signs = np.where(cells[:, :, 1:] > cells[:, :, :-1], np.float32(1), np.float32(-1)).reshape(-1, HASH_BITS)
    directions = _directions(cells.reshape(-1, HASH_SIDE * (HASH_SIDE + 1)))
    rows = max(1, _PAIRS_AT_ONCE // max(1, len(cells)))
    pairs = []
    for start in range(0, len(cells), rows):
        block = slice(start, start + rows)
        alike = signs[block] @ signs[start:].T >= HASH_BITS - 2 * MOST_BITS
        alike &= directions[block] @ directions[start:].T >= LEAST_CORRELATION
        first, second = np.nonzero(alike)
        pairs += [(start + i, start + j) for i, j in zip(first.tolist(), second.tolist(), strict=True) if i < j]
    return pairs


def _directions(cells: np.ndarray) -> np.ndarray:
    """Return rows whose products are correlations, [N, cells]; zeros for an image without contrast."""
    centered = cells - cells.mean(axis=1, keepdims=True)
    contrast = cells.std(axis=1, keepdims=True)
    return (
        np.where(contrast >= LEAST_CONTRAST, centered / np.maximum(contrast, LEAST_CONTRAST), 0) / cells.shape[1] ** 0.5
    )
