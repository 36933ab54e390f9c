"""One shard: images checked, objects fitted, records written, findings reported. Runs in a process of its own."""

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image
from pycocotools import mask as coco_mask

from dataset.annotations import AnnotatedImage, AnnotatedObject, Finding, fitted_object
from dataset.check import CheckedImage, SizeDisagreement, UnusableImage, check_image
from dataset.records import Record, RecordObject, encode_record
from dataset.report import Report
from dataset.shard_task import ShardTask, settle, write_atomically
from dataset.turned_pictures import labelled_as_turned
from object_detection.errors import InputError


def convert_shard(task: ShardTask, *, image_done: Callable[[], None]) -> None:
    """Write the shard and its state; either is complete under its name or not there.

    Raises InputError for what is refused and OSError for what cannot be written.
    """
    report, kept = Report(), []
    try:
        with tf.io.TFRecordWriter(str(task.partial_path)) as writer:
            for image in task.images:
                checked = _checked_file(image, task=task, report=report)
                if checked is not None:
                    objects = _fitted_objects(image, checked=checked, report=report)
                    writer.write(encode_record(_record(image, checked=checked, objects=objects, task=task)))
                    report.add_image(image.file_name, objects)
                    if task.keep_annotations:
                        kept.append(_coco_entry(image, checked=checked, objects=objects))
                image_done()
        size = settle(task.partial_path, task.finished_path)
    except tf.errors.OpError as error:
        raise OSError(error.message) from error
    finally:
        task.partial_path.unlink(missing_ok=True)
    write_atomically(task.state_path, json.dumps(
        {"fingerprint": task.fingerprint, "bytes": size, "report": report.to_json(), "kept": kept}))


def _checked_file(image: AnnotatedImage, *, task: ShardTask, report: Report) -> CheckedImage | None:
    def finding(reason: str) -> Finding:
        return Finding(kind="image", file=image.file_name, image_id=image.image_id, reason=reason)

    path = Path(task.image_folder, image.file_name)
    try:
        checked = check_image(path.read_bytes(), expected_size=image.size)
    except SizeDisagreement as error:
        reason = labelled_as_turned(path, image.size)
        if reason is None:
            raise InputError(f"{path} (image {image.image_id} of {task.source}): {error}") from error
    except (OSError, UnusableImage) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else str(error)
    else:
        if checked.fix:
            report.fixed.append(finding(checked.fix))
        return checked
    report.skipped.append(finding(reason))
    report.boxes_of_skipped_images += len(image.objects)
    return None


def _fitted_objects(image: AnnotatedImage, *, checked: CheckedImage, report: Report) -> list[AnnotatedObject]:
    kept = []
    for thing in image.objects:
        fitted, reason = fitted_object(thing, (checked.height, checked.width))
        if reason:
            (report.skipped if fitted is None else report.fixed).append(Finding(
                kind="box", file=image.file_name, image_id=image.image_id, annotation_id=thing.annotation_id,
                reason=reason))
        if fitted is not None:
            kept.append(fitted)
    return kept


def _record(
    image: AnnotatedImage, *, checked: CheckedImage, objects: list[AnnotatedObject], task: ShardTask
) -> Record:
    return Record(
        encoded=checked.encoded, height=checked.height, width=checked.width, file_name=image.file_name,
        image_id=image.image_id, captions=image.captions,
        objects=[
            RecordObject(
                box_xywh=thing.box_xywh, category_id=thing.category_id,
                category_name=task.category_names[thing.category_id], area=thing.area, is_crowd=thing.is_crowd,
                mask_png=_mask_png(thing, image=image, checked=checked, source=task.source)
                if task.include_masks else None)
            for thing in objects
        ],
    )


def _mask_png(thing: AnnotatedObject, *, image: AnnotatedImage, checked: CheckedImage, source: str) -> bytes:
    """A PNG of the size of the image, 1 where the object is."""
    size = [checked.height, checked.width]
    where = f"{source}: annotation {thing.annotation_id} of image {image.image_id}"
    segmentation = thing.segmentation
    if isinstance(segmentation, list):
        for polygon in segmentation:
            if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
                raise InputError(f"{where} has a polygon {str(polygon)[:60]}, wanted at least 3 pairs of x and y")
    elif not isinstance(segmentation, dict) or segmentation.get("size") != size:
        raise InputError(f"{where} has segmentation {str(segmentation)[:60]}, wanted polygons or a run-length code of "
                         f"size {size}")
    try:
        encoded = segmentation
        if isinstance(segmentation, list) or isinstance(segmentation.get("counts"), list):
            encoded = coco_mask.frPyObjects(segmentation, *size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # pycocotools 2.0.11 under NumPy 2
            pixels = coco_mask.decode(encoded)
    except (TypeError, ValueError, KeyError) as error:
        raise InputError(f"{where} has a segmentation that pycocotools cannot read ({error})") from error
    if pixels.ndim == 3:
        pixels = pixels.max(axis=2)
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _coco_entry(image: AnnotatedImage, *, checked: CheckedImage, objects: list[AnnotatedObject]) -> dict:
    """One image and its objects as COCO has them, annotation ids left to the end."""
    return {
        "image": {"id": image.image_id, "file_name": image.file_name, "height": checked.height,
                  "width": checked.width},
        "annotations": [
            {"image_id": image.image_id, "category_id": thing.category_id, "bbox": list(thing.box_xywh),
             "area": thing.area, "iscrowd": int(thing.is_crowd), "difficult": int(thing.is_difficult)}
            for thing in objects
        ],
    }
