"""Write a data set as sharded TFRecords in several processes; an interrupted run can be resumed.

For shard i of n of the prefix DIR/train:

    DIR/.train-0000i-of-0000n.tfrecord.HOST-PROCESS.partial   being written
    DIR/.train-0000i-of-0000n.tfrecord.finished               complete, flushed to disk
    DIR/.train.conversion/0000i-of-0000n.json     its input, and its part of the report
    DIR/train-0000i-of-0000n.tfrecord             final name, after all shards are complete and the data set is accepted

This module does not import TensorFlow, which takes seconds; the worker processes do.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from dataset.conversion.annotations import AnnotatedDataSet, AnnotatedImage, AnnotatedObject, ReportEntry, in_pixels
from dataset.conversion.conversion_options import ConversionConfig
from dataset.conversion.conversion_report import (
    REFUSED_REPORT,
    Report,
    check_fractions,
    readable_report,
    refusal_with_report,
)
from dataset.conversion.shard_files import (
    CONTINUE,
    FINISHED,
    ShardTask,
    files_beside,
    is_finished,
    is_known,
    refuse_other_shards,
    remove_leftovers,
    sole_writer,
)
from dataset.conversion.shard_processes import convert_shards
from dataset.conversion.upright_labels import mark_upright
from dataset.files.image_formats import LARGEST_IMAGE_PIXELS
from dataset.files.image_windows import size_of_large_tiff
from dataset.files.pixel_values import ValueRange, value_range_for
from program_support.atomic_files import write_text
from program_support.claimed_outputs import claimed_outputs
from program_support.errors import InputError
from program_support.remote_addresses import is_remote, read_ahead, storage
from program_support.signals import DeferredSignals

CONVERTER_VERSION = 5  # incremented when the same input gives different records
PART_SIDE = 2048  # pixels; a record is decoded for each tile that training draws from it
_LEAST_BYTES = 1_000_000  # of a compressed file with more pixels than that
_LEAST_VISIBLE = 0.5  # objects of which a part shows a smaller share of the area are ignored
_MOST_READ = 1000  # images of which the range is found, evenly spaced


def convert(data: AnnotatedDataSet, config: ConversionConfig, *, log: Callable[[str], None] = print) -> Report:
    """Write records, class names and report of a data set.

    In both cases no new shard has its final name, unless the signal arrived during publication.

    Raises:
        InputError: input is rejected, too many images or boxes would be skipped, or writing fails, and Interrupted
            for SIGINT or SIGTERM.
    """
    stats = _file_stats(data.images, config.image_folder)
    data, large = in_parts(data, config.image_folder, file_bytes=stats[:, 0], with_masks=config.include_masks)
    if large:
        log(f"{large} images with more than {LARGEST_IMAGE_PIXELS} pixels become parts of {PART_SIDE} pixels per side")
        stats = _file_stats(data.images, config.image_folder)
    try:
        _check_what_is_known(data, stats, config)
        black, white = value_range_of(data.images, config, log=log)
        config = replace(config, black_level=black, white_level=white)
        mark_upright(data.images, config.image_folder)
        config.state_folder.mkdir(parents=True, exist_ok=True)
        with sole_writer(config), claimed_outputs(*files_beside(config), adopts=is_known(config)):
            refuse_other_shards(config)
            remove_leftovers(config)
            tasks = _shard_tasks(data, stats, config)
            with DeferredSignals():
                _log_reuse(data, tasks, config, log=log)
            with storage().states(config) if config.remote_output else contextlib.nullcontext():
                convert_shards(
                    [task for index, task in enumerate(tasks) if not is_finished(task, config.shard_path(index))],
                    config,
                )
            states = [json.loads(task.state_path.read_text(encoding="utf-8")) for task in tasks]
            report = Report(skipped=list(data.skipped), noted=list(data.noted))
            for state in states:
                report.add(Report.from_json(state["report"]))
            _check_fractions(report, data, config)
            with DeferredSignals():  # otherwise only some shards could get their final names
                _publish(
                    data, report, tasks, config=config, written=[entry for state in states for entry in state["kept"]]
                )
                if config.remote_output:
                    storage().publish(config)
    except OSError as error:
        place, reason = error.filename or f"{config.output_prefix}-*", error.strerror or error
        raise InputError(f"cannot write {place}: {reason}; {CONTINUE}") from error
    return report


def check_annotations(data: AnnotatedDataSet, config: ConversionConfig) -> None:
    """Raise InputError if too much of a data set is unusable, as `convert` does, from the annotations alone."""
    try:
        _check_what_is_known(data, _file_stats(data.images, config.image_folder), config)
    except OSError as error:
        raise InputError(f"cannot write {error.filename}: {error.strerror or error}") from error


def value_range_of(
    images: Sequence[AnnotatedImage], config: ConversionConfig, *, log: Callable[[str], None] = print
) -> ValueRange:
    """Return the range of the configuration, with the white level of these images unless it has one."""
    if config.white_level is not None:
        return ValueRange(config.black_level, config.white_level)
    step = max(1, len(images) // _MOST_READ)
    chosen = [image for image in images[::step] if not image.file_name.lower().endswith((".jpg", ".jpeg"))]
    largest = value_range_for(
        (Path(config.image_folder, image.file_name) for image in read_ahead(chosen, config.image_folder)),
        log=log,
        in_order=is_remote(config.image_folder),
    )
    return largest._replace(black=config.black_level)


def _file_stats(images: Sequence[AnnotatedImage], folder: str) -> np.ndarray:
    """Return size in bytes and modification time of every image, [N, 2] int64, -1 for missing files."""
    stats = np.full((len(images), 2), -1, np.int64)  # an array, not a list: there may be millions
    if is_remote(folder):
        listing = storage().listing(folder)
        for number, image in enumerate(images):
            stats[number] = listing.get(image.file_name, (-1, -1))
        return stats
    for number, image in enumerate(images):
        with contextlib.suppress(OSError):
            status = os.stat(os.path.join(folder, image.file_name))
            stats[number] = status.st_size, status.st_mtime_ns
    return stats


def _check_what_is_known(data: AnnotatedDataSet, stats: np.ndarray, config: ConversionConfig) -> None:
    """Raise InputError early for errors that would otherwise appear only after hours of conversion."""
    absent = [data.images[number] for number in np.flatnonzero(stats[:, 0] < 0).tolist()]
    if absent and len(absent) == len(data.images):
        raise InputError(
            f"{config.image_folder}: none of the {len(absent)} images of {data.source} is in this folder, "
            f"such as {absent[0].file_name}"
        )
    preview = Report(
        images=len(data.images) - len(absent),
        boxes_of_skipped_images=sum(len(image.objects) for image in absent),
        skipped=[
            *data.skipped,
            *(
                ReportEntry(
                    kind="image",
                    file=image.file_name,
                    image_id=image.image_id,
                    reason=f"no such file in {config.image_folder}",
                )
                for image in absent
            ),
        ],
    )
    _check_fractions(preview, data, config, before_reading=True)


def _check_fractions(
    report: Report, data: AnnotatedDataSet, config: ConversionConfig, *, before_reading: bool = False
) -> None:
    """Raise InputError if too much would be skipped; the report with all items is written in this case, too."""
    listed_images, listed_boxes = data.split_from or (data.listed_images, data.listed_boxes)
    try:
        check_fractions(
            report,
            listed_images=listed_images,
            listed_boxes=listed_boxes,
            max_bad_fraction=config.max_bad_fraction,
            before_reading=before_reading,
        )
    except InputError as error:
        raise refusal_with_report(error, report, data.class_names, prefix=Path(config.output_prefix)) from error


def _job_settings(data: AnnotatedDataSet, config: ConversionConfig) -> dict[str, Any]:
    """Return all settings that determine the content of every shard."""
    return {
        "annotations": data.fingerprint,
        "image folder": config.image_folder
        if is_remote(config.image_folder)
        else str(Path(config.image_folder).resolve()),
        "--include_masks": config.include_masks,
        "--crowds_as_objects": config.crowds_as_objects,
        "--white_level": config.white_level,
        **({"--black_level": config.black_level} if config.black_level else {}),
        "--num_shards": config.num_shards,
        "converter": CONVERTER_VERSION,
    }


def _shard_tasks(data: AnnotatedDataSet, stats: np.ndarray, config: ConversionConfig) -> list[ShardTask]:
    """Return the task of each shard, including complete ones."""
    names = data.class_names.by_id() if data.class_names else {}
    settings = _job_settings(data, config)
    tasks = []
    for index in range(config.num_shards):
        images, shard_stats = data.images[index :: config.num_shards], stats[index :: config.num_shards]
        made_from = json.dumps([settings, [image.file_name for image in images], shard_stats.tolist()])
        path = config.shard_path(index)
        tasks.append(
            ShardTask(
                images=images,
                source=data.source,
                category_names=names,
                config=config,
                fingerprint=hashlib.sha256(made_from.encode()).hexdigest(),
                finished_path=path.with_name(f".{path.name}{FINISHED}"),
                state_path=config.state_folder / f"{index:05d}-of-{config.num_shards:05d}.json",
            )
        )
    return tasks


def _log_reuse(
    data: AnnotatedDataSet, tasks: list[ShardTask], config: ConversionConfig, *, log: Callable[[str], None]
) -> None:
    """Log what is reused; store the settings, whose file tells that a conversion has been here."""
    if finished := sum(is_finished(task, config.shard_path(index)) for index, task in enumerate(tasks)):
        log(f"{finished} of {len(tasks)} shards are complete and reused")
    if config.num_shards > len(data.images):
        log(
            f"{config.num_shards - len(data.images)} of {config.num_shards} shards will be empty, because there are "
            f"{len(data.images)} images; readers ignore empty shards"
        )
    write_text(config.state_folder / "job.json", json.dumps(_job_settings(data, config), indent=1) + "\n")


def _publish(
    data: AnnotatedDataSet, report: Report, tasks: list[ShardTask], *, config: ConversionConfig, written: list[dict]
) -> None:
    """Rename the finished shards; the report is written last and marks a complete conversion."""
    report_path, class_path = config.beside(".report.json"), config.beside(".classes.json")
    report_path.unlink(missing_ok=True)
    class_path.unlink(missing_ok=True)
    config.beside(REFUSED_REPORT).unlink(missing_ok=True)
    categories = data.class_names.to_categories() if data.class_names else []
    if categories:
        write_text(class_path, json.dumps({"categories": categories}, indent=1) + "\n")
    for index, task in enumerate(tasks):
        if task.finished_path.exists():
            os.replace(task.finished_path, config.shard_path(index))
    if config.keep_annotations:
        write_text(config.beside(".instances.json"), json.dumps(_coco_content(written, categories)))
    content = readable_report(report, data.class_names)
    content["made_from"] = {
        "source": data.source,
        **_job_settings(data, config),
        "--max_bad_fraction": config.max_bad_fraction,
    }
    write_text(report_path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _coco_content(written: list[dict], categories: list[dict]) -> dict:
    written = sorted(written, key=lambda entry: entry["image"]["id"])
    annotations = [annotation for entry in written for annotation in entry["annotations"]]
    return {
        "images": [entry["image"] for entry in written],
        "annotations": [{"id": number, **annotation} for number, annotation in enumerate(annotations, start=1)],
        "categories": categories,
    }


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
