"""Annotations of any supported format as `LabeledImages`, without conversion."""

from pathlib import Path

import numpy as np

from dataset.conversion.annotations import (
    LARGEST_COORDINATE,
    AnnotatedDataSet,
    AnnotatedImage,
    fitted_object,
    in_pixels,
)
from dataset.conversion.upright_labels import mark_upright, rotated_jpeg, rotation_of
from dataset.files.bounded_files import read_image_file
from dataset.files.image_files import stored_size
from dataset.files.image_formats import DECODING_ERRORS
from dataset.records.labeled_records import LabeledImages
from program_support.errors import InputError


def labeled_annotations(data: AnnotatedDataSet, image_folder: str) -> LabeledImages:
    """Return the images of a data set; boxes are clipped to their images, as in conversion.

    An image of unknown size is left out.

    Raises:
        InputError: for data without classes.
    """
    if data.class_names is None:
        raise InputError(f"{data.source}: names no categories; expected annotations of objects")
    class_of = {category: number for number, category in enumerate(data.class_names.category_ids)}
    mark_upright(data.images, image_folder)
    labeled: list[AnnotatedImage] = []
    sizes, rows = [], []  # rows: image, box, class, crowd, difficult
    left_out, images_left_out = (
        [f"{finding.file}: {finding.reason}" for finding in data.skipped if (finding.kind == "image") is of_images]
        for of_images in (False, True)
    )
    for image in data.images:
        try:
            size = _annotated_size(image) or _size_of(Path(image_folder) / image.file_name, image)
        except InputError as error:
            images_left_out.append(str(error))
            continue
        for annotation in image.objects:
            fitted, reason = fitted_object(in_pixels(annotation, size) if image.in_shares else annotation, size)
            if fitted is None:
                left_out.append(f"{image.file_name}: {reason}")
                continue
            x, y, width, height = fitted.box_xywh
            box = (y, x, y + height, x + width)
            rows.append((len(labeled), box, class_of[fitted.category_id], fitted.is_crowd, fitted.is_difficult))
        labeled.append(image)
        sizes.append(size)
    owners, boxes, classes, crowd, difficult = zip(*rows, strict=True) if rows else [()] * 5
    return LabeledImages(
        class_names=data.class_names,
        names=[image.file_name for image in labeled],
        sizes=np.array(sizes, np.int32).reshape(-1, 2),
        owners=np.array(owners, np.int32),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        classes=np.array(classes, np.int32),
        crowd=np.array(crowd, bool),
        difficult=np.array(difficult, bool),
        digests=[b""] * len(labeled),
        encoded=lambda number: _encoded(Path(image_folder) / labeled[number].file_name, labeled[number]),
        left_out=left_out,
        images_left_out=images_left_out,
    )


def _annotated_size(image: AnnotatedImage) -> tuple[int, int] | None:
    if image.size and max(image.size) > LARGEST_COORDINATE:
        raise InputError(f"{image.file_name}: says {image.size[1]}x{image.size[0]}, which no image has")
    return image.size


def _size_of(path: Path, image: AnnotatedImage) -> tuple[int, int]:
    try:
        content = read_image_file(path)
        size = stored_size(content)
        return size[::-1] if rotation_of(image, content)[0] >= 5 else size
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {getattr(error, 'strerror', None) or error}; its annotations have no size either"
        ) from error


def _encoded(path: Path, image: AnnotatedImage) -> bytes:
    """Return the file, or a JPEG rotated upright if its labels are."""
    content = read_image_file(path)
    orientation, _ = rotation_of(image, content)
    if orientation == 1:
        return content
    try:
        return rotated_jpeg(content, orientation)
    except DECODING_ERRORS as error:
        raise InputError(f"{path}: cannot be decoded ({error})") from error
