"""Find images with EXIF rotation whose labels are those of the upright image, and rotate them upright.

The annotated size tells it for rotations by 90 degrees, and without a size the boxes may. Some tools state the size of
the stored pixels and show the image upright: boxes that leave the stored image and fit the upright one decide then.
Where nothing tells (flips, rotations by 180 degrees, squares), it is as for the other images of the data set, or as for
the tool: YOLO and labelme show images upright.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from dataset.conversion.annotations import AnnotatedImage
from dataset.files.bounded_files import open_image_file
from dataset.files.image_files import upright_image
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, exif_orientation
from program_support.remote_addresses import is_remote, read_ahead

JPEG_QUALITY = 95
_MOST_READ = 1000  # images per data set, evenly spaced: a second
_READERS = 16
_TOLERANCE = 1.0  # pixels that a box may extend beyond its image
_CARELESS = 0.02  # of a side, by which boxes of an image with the right size leave it


class StoredShape(NamedTuple):
    """Height and width in stored pixels, and the EXIF orientation, 1 (as stored) .. 8."""

    size: tuple[int, int]
    orientation: int

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width of the image as viewers show it."""
        return self.size[::-1] if self.orientation >= 5 else self.size


def stored_shape(content: bytes | Path) -> StoredShape | None:
    """Return the shape from the header of an encoded image or its file; None if it cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        return _shape(content)


def _shape(content: bytes | Path) -> StoredShape | None:
    try:
        with (
            open_image_file(content) if isinstance(content, Path) else io.BytesIO(content) as file,
            Image.open(file, formats=FORMATS) as image,
        ):
            # Pillow rotates TIFF itself
            return StoredShape(image.size[::-1], 1 if image.format == "TIFF" else exif_orientation(image))
    except DECODING_ERRORS:
        return None


def labels_are_upright(image: AnnotatedImage, shape: StoredShape) -> bool | None:
    """Return whether the labels are of the upright image by its size or its boxes; None if neither tells."""
    if image.size is not None:
        is_upright, is_stored = image.size == shape.upright_size, image.size == shape.size
    elif image.in_shares or not image.objects:
        return None
    else:
        is_upright, is_stored = (_fit(image, size) for size in (shape.upright_size, shape.size))
    return is_upright if is_upright != is_stored else None


def rotation_of(image: AnnotatedImage, content: bytes) -> tuple[int, str | None]:
    """Return the EXIF orientation by which an image has to be rotated to match its labels, 1 for none, and a doubt."""
    shape = stored_shape(content)
    if shape is None or shape.orientation == 1:
        return 1, None
    is_upright = labels_are_upright(image, shape)
    if image.is_upright if is_upright is None else is_upright:
        return shape.orientation, None
    if is_upright is None and image.objects and not image.in_shares:
        return 1, (
            f"has EXIF orientation {shape.orientation}, and neither a size nor the boxes tell whether it was labeled "
            "upright: taken as labeled in stored pixels"
        )
    return 1, None


def mark_upright(images: Sequence[AnnotatedImage], folder: str | Path) -> None:
    """Set `is_upright` of all images if sizes or boxes of some tell that this tool labels images upright.

    The size of stored pixels becomes that of the upright image where the boxes contradict it, and in images without
    such boxes if all contradictions are of this kind.
    """
    step = max(1, len(images) // _MOST_READ)
    chosen = [image for image in images[::step] if not image.is_upright or (image.size and not _fit(image, image.size))]
    rotated = [*_rotated(chosen, folder)]
    contradicted = {_boxes_are_upright(image, shape) for image, shape in rotated if image.size == shape.size}
    if True in contradicted:
        rotated = [*_rotated(images, folder)]
        for image, shape in rotated:
            are_upright = _boxes_are_upright(image, shape)
            if image.size == shape.size and (are_upright or (are_upright is None and False not in contradicted)):
                image.size = shape.upright_size
    evidence = {labels_are_upright(image, shape) for image, shape in rotated if not image.is_upright}
    if True in evidence and False not in evidence:
        for image in images:
            image.is_upright = True


def _rotated(images: Sequence[AnnotatedImage], folder: str | Path) -> Iterator[tuple[AnnotatedImage, StoredShape]]:
    """Yield the images with an EXIF rotation and boxes in pixels."""
    in_pixels = [image for image in images if not image.in_shares]
    with warnings.catch_warnings(), ThreadPoolExecutor(_READERS) as pool:
        warnings.simplefilter("ignore")  # they concern metadata; set here, as the filters belong to all threads
        paths = (Path(folder, image.file_name) for image in read_ahead(in_pixels, folder))
        shapes = (map if is_remote(folder) else pool.map)(_shape, paths)
        for image, shape in zip(in_pixels, shapes, strict=True):
            if shape is not None and shape.orientation != 1:
                yield image, shape


def _boxes_are_upright(image: AnnotatedImage, shape: StoredShape) -> bool | None:
    """Return whether the boxes are of the upright image, as they leave the stored one; None if they do not tell.

    False: they leave the upright image.
    """
    in_upright, in_stored = (_fit(image, size, careless=True) for size in (shape.upright_size, shape.size))
    return in_upright if in_upright != in_stored else None


def rotated_jpeg(content: bytes, orientation: int) -> bytes:
    """Return an encoded image rotated by an EXIF orientation, as JPEG without the tag.

    Raises:
        `DECODING_ERRORS`: the image cannot be decoded.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            pixels = upright_image(np.asarray(image.convert("RGB")), orientation)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def _fit(image: AnnotatedImage, size: tuple[int, int], *, careless: bool = False) -> bool:
    height, width = size
    beyond = max(_TOLERANCE, _CARELESS * min(size)) if careless else _TOLERANCE
    return all(
        x + box_width <= width + beyond and y + box_height <= height + beyond
        for x, y, box_width, box_height in (annotation.box_xywh for annotation in image.objects)
    )
