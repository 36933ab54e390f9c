"""Images with too many pixels for one record become parts, each a record of its own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, in_pixels
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.image_windows import size_of_large_tiff
from program_support.errors import InputError
from program_support.remote_addresses import is_remote

PART_SIDE = 2048  # pixels; a record is decoded for each tile that training draws from it
_LEAST_BYTES = 1_000_000  # of a compressed file with more pixels than that
_LEAST_VISIBLE = 0.5  # objects of which a part shows a smaller share of the area are ignored


def in_parts(
    data: AnnotatedDataSet, folder: str, *, file_bytes: np.ndarray, with_masks: bool
) -> tuple[AnnotatedDataSet, int]:
    """Return the data with each image of more than `LARGEST_IMAGE_PIXELS` as parts, and how many images those are.

    file_bytes: [N], of the files of the images; small ones are not opened.

    Raises:
        InputError: there are such images, and masks are requested.
    """
    candidates = np.flatnonzero(file_bytes >= _LEAST_BYTES).tolist()
    sizes = {number: size for number in candidates if (size := _large_size(folder, data.images[number]))}
    if not sizes:
        return data, 0
    if with_masks:
        name = data.images[next(iter(sizes))].file_name
        raise InputError(
            f"{name}: has more than {LARGEST_IMAGE_PIXELS} pixels and is converted in parts, which have no masks; "
            "expected no --include_masks, or smaller images"
        )
    images: list[AnnotatedImage] = []
    next_id = 1 + max(image.image_id for image in data.images)
    for number, image in enumerate(data.images):
        parts = [image]
        if number in sizes:
            parts = _parts(image, sizes[number], first_id=next_id)
            next_id += len(parts)
        images += parts
    boxes = data.listed_boxes + _boxes(images) - _boxes(data.images)
    return replace(data, images=images, listed_boxes=boxes), len(sizes)


def _boxes(images: Sequence[AnnotatedImage]) -> int:
    return sum(len(image.objects) for image in images)


def _large_size(folder: str, image: AnnotatedImage) -> tuple[int, int] | None:
    """Return (height, width) of an image that is too large for one record; another size in its labels is left alone."""
    if is_remote(folder) and not image.file_name.lower().endswith((".tif", ".tiff")):
        return None  # opening it would fetch all of it
    size = size_of_large_tiff(str(Path(folder, image.file_name)))
    return size if image.size in (None, size) else None


def _parts(image: AnnotatedImage, size: tuple[int, int], *, first_id: int) -> list[AnnotatedImage]:
    objects = [in_pixels(one, size) if image.in_shares else one for one in image.objects]
    path = PurePosixPath(image.file_name)
    parts: list[AnnotatedImage] = []
    for top in range(0, size[0], PART_SIDE):
        for left in range(0, size[1], PART_SIDE):
            part = (top, left, min(top + PART_SIDE, size[0]), min(left + PART_SIDE, size[1]))
            shown = [cut for one in objects if (cut := _cut(one, part)) is not None]
            parts.append(
                replace(
                    image,
                    image_id=first_id + len(parts),
                    size=(part[2] - top, part[3] - left),
                    objects=shown,
                    captions=[],
                    in_shares=False,
                    part=part,
                    record_name=str(path.with_name(f"{path.stem}_{top}_{left}.jpg")),
                )
            )
    return parts


def _cut(one: AnnotatedObject, part: tuple[int, int, int, int]) -> AnnotatedObject | None:
    """Return what a part shows of an object, as a crowd if it is too little; None if that is nothing."""
    top, left, bottom, right = part
    x, y, width, height = one.box_xywh
    start, end = (max(x, left), max(y, top)), (min(x + width, right), min(y + height, bottom))
    sides = end[0] - start[0], end[1] - start[1]
    if min(sides) <= 0 or min(width, height) <= 0:
        return None
    visible = sides[0] * sides[1] / (width * height)
    return replace(
        one,
        box_xywh=(start[0] - left, start[1] - top, *sides),
        area=None if one.area is None else one.area * visible,
        is_crowd=one.is_crowd or visible < _LEAST_VISIBLE,
        segmentation=None,
    )
