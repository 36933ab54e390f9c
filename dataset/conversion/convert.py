"""Convert one shard: check images, clip objects, write records, report findings. Runs in a worker process."""

import io
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import tensorflow as tf
from PIL import Image

from dataset.conversion.annotations import AnnotatedImage, AnnotatedObject, Finding, fitted_object, in_pixels
from dataset.conversion.check import CheckedImage, SizeDisagreement, UnusableImage, check_image
from dataset.conversion.conversion_report import Report
from dataset.conversion.segmentation import UnusableSegmentation, mask_png
from dataset.conversion.sharding.shard_task import ShardTask, flush_and_rename
from dataset.files.bounded_files import read_regular_file
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, exif_orientation
from dataset.records.schema import Record, RecordObject, encode_record
from program_support.atomic_files import write_text
from program_support.errors import InputError


def convert_shard(task: ShardTask, *, image_done: Callable[[], None]) -> None:
    """Write the shard and its state atomically.

    Raises InputError for rejected input and OSError for failed writes.
    """
    report, kept = Report(), []
    try:
        with tf.io.TFRecordWriter(str(task.partial_path)) as writer:
            for image in task.images:
                if (found := _usable_image(image, task=task, report=report)) is not None:
                    checked, objects, masks = found
                    writer.write(
                        encode_record(_record(image, checked=checked, objects=objects, masks=masks, task=task))
                    )
                    report.add_image(image.file_name, objects)
                    if task.keep_annotations:
                        kept.append(_coco_entry(image, checked=checked, objects=objects))
                image_done()
        size = flush_and_rename(task.partial_path, task.finished_path)
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
    finally:
        task.partial_path.unlink(missing_ok=True)
    write_text(
        task.state_path,
        json.dumps({"fingerprint": task.fingerprint, "bytes": size, "report": report.to_json(), "kept": kept}),
    )


def _usable_image(
    image: AnnotatedImage, *, task: ShardTask, report: Report
) -> tuple[CheckedImage, list[AnnotatedObject], list[bytes | None]] | None:
    """Return an image with the kept objects and their masks, or None, with the reason in the report."""
    checked = _checked_file(image, task=task, report=report)
    if checked is None:
        return None
    if task.crowds_as_objects:
        image.objects = [replace(one, is_crowd=False, is_difficult=False) for one in image.objects]
    objects, masks = _fitted_objects(image, checked=checked, report=report, with_masks=task.include_masks)
    listed = image.refused + len(image.objects)
    if listed and not objects and not task.keep_images_of_refused_boxes:
        report.dropped.append(
            Finding(
                kind="image",
                file=image.file_name,
                image_id=image.image_id,
                reason=("its only box was refused" if listed == 1 else f"all of its {listed} boxes were refused"),
            )
        )
        return None
    return checked, objects, masks


def _checked_file(image: AnnotatedImage, *, task: ShardTask, report: Report) -> CheckedImage | None:
    def finding(reason: str) -> Finding:
        return Finding(kind="image", file=image.file_name, image_id=image.image_id, reason=reason)

    path = Path(task.image_folder, image.file_name)
    try:
        content = read_regular_file(path)
        checked = check_image(content, expected_size=image.size)
    except SizeDisagreement as error:
        reason = _exif_rotation_error(content, image)
        if reason is None:
            raise InputError(f"{path} (image {image.image_id} of {task.source}): {error}") from error
    except (OSError, UnusableImage) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
    else:
        reason = _exif_rotation_error(content, image) if image.is_upright and image.objects else None
        if reason is None:
            if checked.fix:
                report.fixed.append(finding(checked.fix))
            return checked
    report.skipped.append(finding(reason))
    report.boxes_of_skipped_images += len(image.objects)
    return None


def _fitted_objects(
    image: AnnotatedImage, *, checked: CheckedImage, report: Report, with_masks: bool
) -> tuple[list[AnnotatedObject], list[bytes | None]]:
    """Return the kept objects, and the mask of each if masks are requested."""
    size = (checked.height, checked.width)
    kept, masks = [], []
    for annotation in image.objects:
        fitted, reason = fitted_object(in_pixels(annotation, size) if image.in_shares else annotation, size)
        mask = None
        if with_masks and fitted is not None:
            try:
                mask, fix = mask_png(fitted.segmentation, size)
                reason = "; ".join(filter(None, (reason, fix)))
            except UnusableSegmentation as error:
                fitted, reason = None, str(error)
        if reason:
            (report.skipped if fitted is None else report.fixed).append(
                Finding(
                    kind="box",
                    file=image.file_name,
                    image_id=image.image_id,
                    annotation_id=annotation.annotation_id,
                    reason=reason,
                )
            )
        if fitted is not None:
            kept.append(fitted)
            masks.append(mask)
    return kept, masks


def _record(
    image: AnnotatedImage,
    *,
    checked: CheckedImage,
    objects: list[AnnotatedObject],
    masks: list[bytes | None],
    task: ShardTask,
) -> Record:
    return Record(
        encoded=checked.encoded,
        height=checked.height,
        width=checked.width,
        file_name=image.file_name,
        image_id=image.image_id,
        captions=image.captions,
        objects=[
            RecordObject(
                box_xywh=annotation.box_xywh,
                category_id=annotation.category_id,
                category_name=task.category_names[annotation.category_id],
                area=cast(float, annotation.area),  # set by `fitted_object`
                is_crowd=annotation.is_crowd,
                is_difficult=annotation.is_difficult,
                mask_png=mask,
            )
            for annotation, mask in zip(objects, masks, strict=True)
        ],
    )


def _coco_entry(image: AnnotatedImage, *, checked: CheckedImage, objects: list[AnnotatedObject]) -> dict:
    """Return one image and its objects in COCO format; annotation ids are assigned at the end."""
    return {
        "image": {"id": image.image_id, "file_name": image.file_name, "height": checked.height, "width": checked.width},
        "annotations": [
            {
                "image_id": image.image_id,
                "category_id": annotation.category_id,
                "bbox": list(annotation.box_xywh),
                "area": annotation.area,
                "iscrowd": int(annotation.is_crowd),
                "difficult": int(annotation.is_difficult),
            }
            for annotation in objects
        ],
    }


def _exif_rotation_error(content: bytes, image: AnnotatedImage) -> str | None:
    """Return the error if an image has EXIF rotation and its labels are of the upright image, else None.

    They are if the tool shows images upright, or if the annotated size is that of the upright image. It is not fixed
    automatically: sizes reveal only rotations by 90 degrees, and images of the same tool that are rotated by 180
    degrees would remain wrong.
    """
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(content), formats=FORMATS) as stored:
            warnings.simplefilter("ignore")  # about metadata
            width, height = stored.size
            orientation = exif_orientation(stored)
    except DECODING_ERRORS:
        return None
    if orientation == 1 or not (image.is_upright or (orientation >= 5 and image.size == (width, height))):
        return None
    found = (
        f"the annotations say {image.size[1]}x{image.size[0]}" if image.size else "its labels are of the upright image"
    )
    return (
        f"labeled as rotated by its EXIF orientation {orientation}: {found}, but {width}x{height} pixels are stored; "
        "expected boxes in stored pixels; rotate all images upright (mogrify -auto-orient), also those with a rotation "
        "by 180 degrees, and convert again"
    )
