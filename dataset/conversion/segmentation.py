"""Masks of COCO's segmentations: polygons and run lengths, validated before they are passed to pycocotools' C code.

That code does not check its input: it allocates five points for each pixel of an outline and writes as many pixels as
the run lengths specify, so numbers out of range crash the process.
"""

import io
from typing import Any, TypeGuard

import numpy as np
from PIL import Image

from dataset.conversion.annotations import LARGEST_COORDINATE
from dataset.files.untrusted_values import shown
from object_detection.coco.run_length_masks import RunLengths, decoded, encoded, run_lengths
from program_support.errors import InputError

MOST_POLYGONS = 10_000  # limit of an object; merging these takes 2 s in a photo, 14 s in an image of 100 megapixels
LONGEST_OUTLINE = 2_000_000  # pixels of all polygons of one object: 160 MB in pycocotools


class UnusableSegmentation(InputError):
    """The segmentation is not a valid mask of the image; the message is the reason."""


def check_segmentation(segmentation: Any) -> None:
    """Raise UnusableSegmentation for a segmentation that is invalid for any image size."""
    if isinstance(segmentation, list):
        if not 1 <= len(segmentation) <= MOST_POLYGONS:
            raise UnusableSegmentation(
                f"{len(segmentation)} polygons in its segmentation, expected 1 to {MOST_POLYGONS}"
            )
        for polygon in segmentation:
            _points(polygon)
    elif isinstance(segmentation, dict):
        counts, size = segmentation.get("counts"), segmentation.get("size")
        if not (_is_flat(size) and len(size) == 2) or not (isinstance(counts, str) or _is_flat(counts)):
            raise UnusableSegmentation(
                f"segmentation {shown(segmentation)}, expected run lengths: size (height, width) and counts"
            )
    else:
        raise UnusableSegmentation(f"segmentation {shown(segmentation)}, expected polygons or run lengths")


def mask_png(segmentation: Any, size: tuple[int, int]) -> bytes:
    """Return a PNG of the size (height, width), 1 inside the object.

    Raises:
        UnusableSegmentation: it is invalid or does not fit this image.
    """
    check_segmentation(segmentation)
    pixels = (
        decoded(_union(segmentation, size)).view(np.uint8)
        if isinstance(segmentation, list)
        else _unrolled(segmentation, size)
    )
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def validated_run_lengths(segmentation: Any, size: tuple[int, int]) -> RunLengths:
    """Return the run lengths of any segmentation in an image (height, width).

    Raises:
        UnusableSegmentation: the run lengths do not fit the image.
    """
    check_segmentation(segmentation)
    return _union(segmentation, size) if isinstance(segmentation, list) else run_lengths(_unrolled(segmentation, size))


def _is_flat(values: Any) -> TypeGuard[list[int | float]]:
    """Return whether this is a list of int and float; bool is rejected."""
    return isinstance(values, list) and set(map(type, values)) <= {int, float}


def _points(polygon: Any) -> np.ndarray:
    """Return a polygon (x, y, x, y, ..) as [n, 2] float64, x and y.

    Raises:
        UnusableSegmentation: invalid.
    """
    if not _is_flat(polygon) or len(polygon) < 6 or len(polygon) % 2:
        raise UnusableSegmentation(
            f"polygon {shown(polygon)} in its segmentation, expected at least 3 pairs of x and y"
        )
    try:
        points = np.array(polygon, np.float64).reshape(-1, 2)
    except OverflowError:  # an integer beyond float64
        points = np.array([[np.inf, np.inf]])
    if not (np.abs(points) <= LARGEST_COORDINATE).all():  # also true for NaN
        raise UnusableSegmentation(
            f"polygon {shown(polygon)} in its segmentation, expected finite coordinates of at most "
            f"{LARGEST_COORDINATE:g}"
        )
    return points


def _union(segmentation: list, size: tuple[int, int]) -> RunLengths:
    """Return the union of polygons in an image of `size`; parts outside the image are left out."""
    polygons = [_points(polygon) for polygon in segmentation]
    outline = sum(np.abs(points - np.roll(points, 1, axis=0)).max(axis=1).sum() for points in polygons)
    if outline > LONGEST_OUTLINE:
        raise UnusableSegmentation(
            f"outline of {outline:.0f} pixels in its segmentation, expected at most {LONGEST_OUTLINE}"
        )
    return encoded([points.ravel() for points in polygons], size)


def _unrolled(segmentation: dict, size: tuple[int, int]) -> np.ndarray:
    """Decode column-wise run lengths that begin with zeros: [height, width] uint8."""
    if segmentation["size"] != list(size):
        raise UnusableSegmentation(
            f"segmentation of size {shown(segmentation['size'])}, expected that of the image, {[*size]}"
        )
    counts = segmentation["counts"]
    if isinstance(counts, str):
        counts = _decompressed(counts)
    area = size[0] * size[1]
    if not all(0 <= count <= area and count == int(count) for count in counts) or sum(counts) != area:
        raise UnusableSegmentation(
            f"run lengths {shown(counts)} in its segmentation, expected non-negative integers with the "
            f"sum {area}, the pixels of the image"
        )
    values = np.arange(len(counts), dtype=np.uint8) & 1
    return np.repeat(values, np.array(counts, np.int64)).reshape(size[::-1]).T


def _decompressed(text: str) -> list[int]:
    """Decode COCO's compressed run lengths: groups of 5 bits, low bits first, 32 if more follow, plus 48.

    The last bit of the last group is the sign; from the fourth on, each number is the difference to the last but one.
    """
    counts: list[int] = []
    value, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 30:
            break
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits & 16) << shift - 4
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value, shift = 0, 0
    else:
        if not shift:
            return counts
    raise UnusableSegmentation(f"compressed run lengths {shown(text)} in its segmentation, which no encoder writes")
