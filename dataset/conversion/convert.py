"""Convert one shard: check images, clip objects, write records, report findings. Runs in a worker process.

Each JPEG is decoded completely and strictly, as libjpeg fills damage with gray. Unambiguous defects are fixed: other
formats and CMYK are converted to RGB JPEG, a missing end marker is added, stray bytes between header segments are
removed. All other defects are rejected with the reason.
"""

import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import simplejpeg
import tensorflow as tf
from PIL import Image

from dataset.conversion.annotations import AnnotatedImage, AnnotatedObject, ReportEntry, fitted_object, in_pixels
from dataset.conversion.conversion_report import Report
from dataset.conversion.segmentation import UnusableSegmentation, mask_png
from dataset.conversion.shard_files import ShardTask, flush_and_rename
from dataset.conversion.upright_labels import JPEG_QUALITY, rotated_jpeg, rotation_of
from dataset.files.bounded_files import read_image_file
from dataset.files.image_files import encode_image
from dataset.files.image_formats import DECODING_ERRORS, FORMATS, LARGEST_IMAGE_PIXELS, image_parts, note_of_unread_tiff
from dataset.files.image_windows import open_windows
from dataset.files.pixel_values import FULL_RANGE, ValueRange, as_rgb
from dataset.records.schema import Record, RecordObject, encode_record
from program_support.atomic_files import write_text
from program_support.errors import InputError
from program_support.remote_addresses import read_ahead, storage

LONGEST_SIDE = 65_500  # limit of libjpeg
MOST_SCANS = 500  # decoding time is proportional to scans times pixels: a small file could take hours

_MARKER = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)
_START_OF_SCAN, _END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
_APPLICATION_SEGMENTS = range(0xE0, 0xF0)
_AFTER_THE_LAST_PIXEL = "extraneous bytes before marker 0xd9"  # a harmless warning


class UnusableImage(ValueError):
    """The file is not an image that training can decode completely; the message is the reason."""


class SizeDisagreement(ValueError):
    """The size of the image differs from its annotations; the message contains both."""


@dataclass(frozen=True, kw_only=True)
class CheckedImage:
    """A JPEG that decodes completely to [height, width, 3]; `fix` describes what was changed.

    `sha256`: of the file that it is from, "" for a part of one.
    """

    encoded: bytes
    height: int
    width: int
    fix: str | None = None
    sha256: str = ""


def check_image(
    data: bytes,
    *,
    expected_size: tuple[int, int] | None = None,
    orientation: int = 1,
    value_range: ValueRange = FULL_RANGE,
) -> CheckedImage:
    """Return the image of a file as the JPEG to store.

    `expected_size` is (height, width) in the annotations. `orientation`: the EXIF orientation by which the image is
    rotated upright, 1 if its labels are in stored pixels, as in COCO. `value_range`: see `as_rgb`.

    Raises:
        UnusableImage, SizeDisagreement: the file has another size.
    """
    is_transposed = orientation >= 5
    stored_size = expected_size[::-1] if expected_size and is_transposed else expected_size
    checked = _checked(data, expected_size=stored_size, value_range=value_range)
    if orientation == 1:
        return checked
    rotation = f"rotated upright by its EXIF orientation {orientation}, as its labels are"
    return replace(
        checked,
        encoded=rotated_jpeg(checked.encoded, orientation),
        height=checked.width if is_transposed else checked.height,
        width=checked.height if is_transposed else checked.width,
        fix=f"{checked.fix}; {rotation}" if checked.fix else rotation,
    )


def check_part(path: str, part: tuple[int, int, int, int], *, value_range: ValueRange) -> CheckedImage:
    """Return the window `part` (top, left, bottom, right) of a file as the JPEG to store.

    Raises:
        UnusableImage: it cannot be read.
    """
    try:
        with open_windows(path, value_range=value_range) as image:
            pixels, note = image.read(*part), image.note
    except InputError as error:
        raise UnusableImage(str(error).removeprefix(f"{path}: ")) from error
    encoded = encode_image(pixels, "JPEG", quality=JPEG_QUALITY)
    return CheckedImage(encoded=encoded, height=pixels.shape[0], width=pixels.shape[1], fix=note or None)


def _checked(data: bytes, *, expected_size: tuple[int, int] | None, value_range: ValueRange) -> CheckedImage:
    if not data:
        raise UnusableImage("the file is empty")
    try:
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):  # another format, or a JPEG with an unusual subsampling
        return _reencoded(data, expected_size=expected_size, value_range=value_range)
    _check_size((height, width), expected_size)
    if colors in ("CMYK", "YCCK"):
        return _reencoded(data, expected_size=expected_size, value_range=value_range)
    scans = sum(part == "scan" for part in image_parts(data))
    if scans > MOST_SCANS:
        raise UnusableImage(f"{scans} scans, expected at most {MOST_SCANS}")
    segments, rest = _header_and_scans(data)
    fixes = []
    if stray_bytes := len(data) - sum(map(len, segments)) - len(rest):
        fixes.append(f"stray bytes between header segments dropped ({stray_bytes})")
    # libjpeg reports only its first warning: those about application segments would hide damage
    bare = b"".join(segment for segment in segments if segment[1] not in _APPLICATION_SEGMENTS)
    damage = _damage(bare + rest)
    if damage and (scans == 1 or rest.endswith(b"\xff")):  # otherwise scans may be missing
        completed = rest.removesuffix(b"\xff") + _END_OF_IMAGE
        if not _damage(bare + completed):
            rest, damage = completed, None
            fixes.insert(0, "end marker added")
    if damage:
        raise UnusableImage(f"truncated or damaged ({damage})")
    return CheckedImage(encoded=b"".join([*segments, rest]), height=height, width=width, fix="; ".join(fixes) or None)


def _header_and_scans(encoded: bytes) -> tuple[list[bytes], bytes]:
    """Return the segments of a JPEG before its first scan, without bytes between them, and the rest."""
    segments, end = [encoded[:2]], 2
    while (marker := _MARKER.search(encoded, end)) and marker[0] != _START_OF_SCAN:
        end = marker.end() + int.from_bytes(encoded[marker.end() : marker.end() + 2])
        segments.append(encoded[marker.start() : end])
    return segments, encoded[marker.start() if marker else end :]


def _damage(encoded: bytes) -> str | None:
    """Return what prevents a complete decoding of a JPEG, here or in training; None for an intact one."""
    try:
        tf.io.extract_jpeg_shape(encoded)  # refuses what only newer versions of libjpeg decode
        simplejpeg.decode_jpeg(encoded)
    except (ValueError, tf.errors.OpError) as error:
        return None if _AFTER_THE_LAST_PIXEL in str(error) else _first_line(str(error))
    return None


def _check_size(size: tuple[int, int], expected_size: tuple[int, int] | None) -> None:
    height, width = size
    if not height or not width:
        raise UnusableImage(f"its header claims {width}x{height} pixels")
    if height * width > LARGEST_IMAGE_PIXELS:
        raise UnusableImage(f"its header claims {width}x{height} pixels; the limit is {LARGEST_IMAGE_PIXELS}")
    if expected_size is not None and size != expected_size:
        hint = " (width and height are swapped)" if size == expected_size[::-1] else ""
        raise SizeDisagreement(
            f"the file holds {width}x{height} pixels, the annotations say {expected_size[1]}x{expected_size[0]}{hint}"
        )


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0].split("}} ")[-1][:120]


def _reencoded(data: bytes, *, expected_size: tuple[int, int] | None, value_range: ValueRange) -> CheckedImage:
    """Encode the first frame of an image that Pillow reads as RGB JPEG; alpha is dropped, as RGB decoders do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata, and about sizes, which are checked here
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            _check_size((image.height, image.width), expected_size)
            if max(image.size) > LONGEST_SIDE:
                raise UnusableImage(f"{image.width}x{image.height} pixels; a JPEG has at most {LONGEST_SIDE} per side")
            stored_as = f"{image.format} {image.mode}"
            rgb = Image.fromarray(as_rgb(image, value_range))
        except (UnusableImage, SizeDisagreement):
            raise
        except Image.UnidentifiedImageError as error:
            raise UnusableImage(note_of_unread_tiff(io.BytesIO(data)) or "is not an image of a known format") from error
        except DECODING_ERRORS as error:
            raise UnusableImage(f"cannot be decoded in full ({_first_line(str(error))})") from error
    buffer = io.BytesIO()
    rgb.save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return CheckedImage(
        encoded=buffer.getvalue(),
        height=rgb.height,
        width=rgb.width,
        fix=f"{stored_as} re-encoded as RGB JPEG",
    )


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
                    report.add_image(objects)
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
