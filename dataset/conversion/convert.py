"""Convert one shard: check images, clip objects, write records, report findings. Runs in a worker process."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import tensorflow as tf

from dataset.conversion.annotations import AnnotatedImage, AnnotatedObject, ReportEntry, fitted_object, in_pixels
from dataset.conversion.check import CheckedImage, SizeDisagreement, UnusableImage, check_image, check_part
from dataset.conversion.conversion_report import Report
from dataset.conversion.segmentation import UnusableSegmentation, mask_png
from dataset.conversion.sharding.shard_files import ShardTask, flush_and_rename
from dataset.conversion.upright_labels import rotation_of
from dataset.files.bounded_files import read_image_file
from dataset.records.schema import Record, RecordObject, encode_record
from program_support.atomic_files import write_text
from program_support.remote_addresses import read_ahead, storage


def convert_shard(task: ShardTask, *, image_done: Callable[[], None]) -> None:
    """Write the shard and its state atomically.

    Raises:
        InputError: for rejected input.
        OSError: for failed writes.
    """
    if task.config.remote_output:
        task = storage().on_this_machine(task)
    report, written, partial = Report(), [], task.partial_path()
    try:
        with tf.io.TFRecordWriter(str(partial)) as writer:
            for image in read_ahead(task.images, task.config.image_folder):
                if (usable := _usable_image(image, task=task, report=report)) is not None:
                    checked, objects, masks = usable
                    writer.write(
                        encode_record(_record(image, checked=checked, objects=objects, masks=masks, task=task))
                    )
                    report.add_image(image.file_name, objects)
                    if task.config.keep_annotations:
                        written.append(_coco_entry(image, checked=checked, objects=objects))
                image_done()
        size = flush_and_rename(partial, task.finished_path)
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
    finally:
        partial.unlink(missing_ok=True)
    write_text(
        task.state_path,
        json.dumps({"fingerprint": task.fingerprint, "bytes": size, "report": report.to_json(), "kept": written}),
    )
    if task.config.remote_output:
        storage().upload_shard(task)


def decode_images(task: ShardTask, images: Sequence[AnnotatedImage]) -> None:
    """Do with images what `convert_shard` does, without writing, to find those that kill the process."""
    for image in images:
        _usable_image(image, task=task, report=Report())


def _usable_image(
    image: AnnotatedImage, *, task: ShardTask, report: Report
) -> tuple[CheckedImage, list[AnnotatedObject], list[bytes | None]] | None:
    """Return an image with the kept objects and their masks, or None, with the reason in the report."""
    checked = _checked_file(image, task=task, report=report)
    if checked is None:
        return None
    objects, masks = _fitted_objects(image, checked=checked, report=report, with_masks=task.config.include_masks)
    if task.config.crowds_as_objects:
        objects = [replace(one, is_crowd=False, is_difficult=False) for one in objects]
    listed = image.refused + len(image.objects)
    if listed and not objects:  # training would treat its objects as background
        report.dropped.append(
            ReportEntry(
                kind="image",
                file=image.file_name,
                image_id=image.image_id,
                reason=("its only box was refused" if listed == 1 else f"all of its {listed} boxes were refused"),
            )
        )
        return None
    return checked, objects, masks


def _checked_file(image: AnnotatedImage, *, task: ShardTask, report: Report) -> CheckedImage | None:
    def finding(reason: str) -> ReportEntry:
        return ReportEntry(kind="image", file=image.file_name, image_id=image.image_id, reason=reason)

    path, value_range = Path(task.config.image_folder, image.file_name), task.config.value_range
    doubt = None
    try:
        if image.file_name in task.fatal:
            raise UnusableImage("ends the process that decodes it")
        if image.part is not None:
            return check_part(str(path), image.part, value_range=value_range)
        content = read_image_file(path)
        orientation, doubt = rotation_of(image, content)
        checked = check_image(content, expected_size=image.size, orientation=orientation, value_range=value_range)
    except (OSError, UnusableImage, SizeDisagreement) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
        reason += f" in {task.source}" if isinstance(error, SizeDisagreement) else ""
        report.skipped.append(finding(reason))
        report.boxes_of_skipped_images += len(image.objects)
        return None
    if checked.fix:
        report.fixed.append(finding(checked.fix))
    if doubt:
        report.noted.append(finding(doubt))
    return replace(checked, sha256=hashlib.sha256(content).hexdigest())


def _fitted_objects(
    image: AnnotatedImage, *, checked: CheckedImage, report: Report, with_masks: bool
) -> tuple[list[AnnotatedObject], list[bytes | None]]:
    """Return the kept objects, and the mask of each if masks are requested."""
    size = (checked.height, checked.width)
    objects, masks = [], []
    for annotation in image.objects:
        fitted, reason = fitted_object(in_pixels(annotation, size) if image.in_shares else annotation, size)
        mask = None
        if with_masks and fitted is not None:
            try:
                mask = mask_png(fitted.segmentation, size)
            except UnusableSegmentation as error:
                fitted, reason = None, str(error)
        if reason:
            (report.skipped if fitted is None else report.fixed).append(
                ReportEntry(
                    kind="box",
                    file=image.file_name,
                    image_id=image.image_id,
                    annotation_id=annotation.annotation_id,
                    reason=reason,
                )
            )
        if fitted is not None:
            objects.append(fitted)
            masks.append(mask)
    return objects, masks


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
        file_name=image.record_name or image.file_name,
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
        "image": {
            "id": image.image_id,
            "file_name": image.record_name or image.file_name,
            "height": checked.height,
            "width": checked.width,
            **({"sha256": checked.sha256} if checked.sha256 else {}),
        },
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
