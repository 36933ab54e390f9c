"""Decode the run lengths of Label Studio's brush masks.

Format: https://github.com/thi-ng/umbrella/tree/develop/packages/rle-pack, of the image's values R, G, B, A.
"""

import numpy as np

from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from program_support.errors import InputError


def box_around_brush(run_lengths: object, size: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return the box (x, y, width, height) around the opaque pixels of an image of `size` (height, width).

    Raises:
        InputError: for run lengths of another size and for a mask without an opaque pixel.
    """
    try:
        if not isinstance(run_lengths, list) or size[0] * size[1] > LARGEST_IMAGE_PIXELS:
            raise ValueError  # bytes(2**31) would be as many zeros
        opaque = _decoded(bytes(run_lengths), 4 * size[0] * size[1]).reshape(*size, 4)[..., 3] > 0
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"has a brush mask that is not one of {size[1]}x{size[0]} pixels") from error
    rows, columns = (np.flatnonzero(opaque.any(axis)) for axis in (1, 0))
    if not rows.size:
        raise InputError("has a brush mask without a pixel")
    left, top = int(columns[0]), int(rows[0])
    return left, top, int(columns[-1]) + 1 - left, int(rows[-1]) + 1 - top


def _decoded(packed: bytes, count: int) -> np.ndarray:
    """Return `count` values uint8.

    Raises:
        ValueError: there are not as many.
    """
    bits, position = "".join(f"{byte:08b}" for byte in packed), 0

    def read(length: int) -> int:
        nonlocal position
        position += length
        return int(bits[position - length : position], 2)

    if read(32) != count:
        raise ValueError
    value_bits = read(5) + 1
    length_bits = [read(4) + 1 for _ in range(4)]
    values, done = np.zeros(count, np.uint8), 0
    while done < count:
        is_run = read(1)
        end = done + 1 + read(length_bits[read(2)])
        values[done:end] = read(value_bits) if is_run else [read(value_bits) for _ in range(end - done)]
        done = end
    return values
