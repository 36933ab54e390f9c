"""Detections to evaluate that are not of a checkpoint: of an exported file, or results that another program wrote."""

from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.conversion.segmentation import UnusableSegmentation, validated_run_lengths
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import error_context, finite_number, listed, shown
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.records.record_index import RecordIndex
from efficientdet.inference.detect import Detect, Detector
from object_detection.coco.evaluation import GroundTruth
from object_detection.coco.results import CocoResults, DetectionRows
from program_support.errors import InputError
from program_support.progress import Progress


def rows_of_detector(
    detector: Detector,
    path: str,
    index: RecordIndex,
    class_names: ClassNames,
    *,
    samples: int,
    may_differ: bool = False,
) -> DetectionRows:
    """Detect in the images of the first `samples` records (0: all); return rows with the category ids of the data.

    may_differ: the detector may have other classes than the data; their detections are left out.

    Raises:
        InputError: the detector, opened from `path`, has other classes.
    """
    if not may_differ and not detector.class_names.has_names_of(class_names):
        raise InputError(
            f"{path}: its classes are {', '.join(detector.class_names.names[:6])}; those of the data are "
            f"{', '.join(class_names.names[:6])}"
        )
    rows = detect_images(detector.detect, index, samples=samples)
    id_of = dict(zip(class_names.names, class_names.category_ids, strict=True))
    unknown = -1  # evaluators leave out detections of categories that they do not know
    ids = np.array([id_of.get(name, unknown) for name in detector.class_names.names], np.int64)
    return rows._replace(category_ids=ids[np.searchsorted(detector.class_names.category_ids, rows.category_ids)])


def detect_images(detect: Detect, index: RecordIndex, *, samples: int = 0) -> DetectionRows:
    """Detect in the images of the first `samples` records (0: all) one at a time, with any detector."""
    results, count = CocoResults(), min(samples or len(index), len(index))
    with Progress("eval", total=count, noun="image") as progress:
        for image in original_images(index, range(count)):
            [rows] = detect([image.pixels])
            results.add_rows(rows.with_image_id(image.image_id))
            progress.advance(1, images=1)
    return results.rows()


def read_results(
    path: str, index: RecordIndex | None, truth: GroundTruth, class_names: ClassNames, *, samples: int = 0
) -> DetectionRows:
    """Return the detections of a file in COCO's results format, a list of image_id, category_id, bbox and score.

    Images are found by `file_name`, by `image_id` or, if that is text, by file name with or without folder and suffix.
    Masks are read if every detection has one.

    Args:
        path: the JSON file; also a file with `images` and `annotations` with scores.
        index: the records; None: the images are those of `truth`.
        truth: the ground truth, for the sizes of masks.
        class_names: classes of the data.
        samples: number of images to evaluate, from the first; 0: all. Detections in other images are left out.

    Raises:
        InputError: the file has another format, or image ids or category ids that the data does not have.
    """
    images: Mapping[int, str] = {image_id: truth.file_names.get(image_id, "") for image_id in truth.image_sizes}
    if index is not None:
        images = {image["id"]: image["file_name"] for image in ground_truth_of_records(index, class_names)["images"]}
    category_ids, evaluated = class_names.category_ids, list(images)[: samples or None]
    entries = _entries(path)
    image_ids = _image_ids(path, entries, images)
    boxes, scores = np.zeros((len(entries), 4), np.float32), np.zeros(len(entries), np.float32)
    for number, entry in enumerate(entries):
        with error_context(f"{path}: detection {number}"):
            _check_category(entry.get("category_id"), category_ids)
            box = entry.get("bbox")
            if not isinstance(box, list) or len(box) != 4:
                raise InputError(f"has bbox {shown(box)}, expected x, y, width and height in pixels")
            x, y, width, height = (finite_number(side, "bbox") for side in box)
            boxes[number] = y, x, y + height, x + width
            scores[number] = finite_number(entry.get("score"), "score")
    position = {image_id: number for number, image_id in enumerate(evaluated)}
    used = [number for number, image_id in enumerate(image_ids) if image_id in position]
    order = sorted(used, key=lambda number: (position[image_ids[number]], -scores[number]))
    masks = _masks(path, [entries[number] for number in order], [truth.image_sizes.get(image_ids[n]) for n in order])
    return DetectionRows(
        image_ids=np.array([image_ids[number] for number in order], np.int64),
        boxes=boxes[order],
        scores=scores[order],
        category_ids=np.array([entries[number]["category_id"] for number in order], np.int64),
        evaluated_ids=np.array(evaluated, np.int64),
        masks=masks,
    )


def _entries(path: str) -> list[dict[str, Any]]:
    """Return the detections of a file.

    Raises:
        InputError: it is no file of results.
    """
    content, file_names = read_json(path), {}
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        listed_images = content.get("images")
        for image in listed_images if isinstance(listed_images, list) else ():
            if isinstance(image, dict) and isinstance(image.get("id"), int | str):
                file_names[image["id"]] = image.get("file_name")
        content = content["annotations"]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise InputError(
            f"{path}: is no file of results; expected COCO's list of image_id, category_id, bbox and score"
        )
    if not file_names:
        return content
    return [
        {"file_name": file_names.get(key), **entry} if isinstance(key := entry.get("image_id"), int | str) else entry
        for entry in content
    ]


def _image_ids(path: str, entries: list[dict[str, Any]], images: Mapping[int, str]) -> list[int]:
    """Return the image id of each detection in the data.

    Raises:
        InputError: in one line, for those without an image.
    """
    by_name: dict[str, int | None] = {}
    for image_id, name in images.items():
        for spelling in _spellings(name):  # None: two images have it
            by_name[spelling] = image_id if by_name.get(spelling, image_id) == image_id else None

    def by_file_name(name: Any) -> int | None:
        image_ids = (by_name.get(spelling) for spelling in _spellings(name)) if isinstance(name, str) else iter(())
        return next((image_id for image_id in image_ids if image_id is not None), None)

    def image_of(entry: dict[str, Any]) -> int | None:
        if entry.get("file_name") and by_name:
            return by_file_name(entry["file_name"])
        key = entry.get("image_id")
        if isinstance(key, str):
            number = int(key) if key.isascii() and key.isdecimal() and len(key) < 20 else None
            return number if number in images else by_file_name(key)
        return key if type(key) is int and key in images else None

    image_ids = [image_of(entry) for entry in entries]
    if None in image_ids:
        entry = entries[image_ids.index(None)]
        example, name = next(iter(images.items()), (0, ""))
        raise InputError(
            f"{path}: {image_ids.count(None)} of {len(entries)} detections are of images that the data does not have, "
            f"such as {shown(entry.get('file_name') or entry.get('image_id'))}; expected image ids such as {example}"
            + (f" or file names such as {name}" if name else "")
        )
    return [one for one in image_ids if one is not None]


def _spellings(name: str) -> list[str]:
    path = PurePosixPath(name.replace("\\", "/"))
    return [spelling for spelling in dict.fromkeys((str(path), path.name, path.stem)) if spelling not in ("", ".")]


def _check_category(number: Any, category_ids: Collection[int]) -> None:
    if type(number) is not int or number not in category_ids:
        hint = (
            "; they seem to begin with 0, as those of YOLO: add 1 to each"
            if number == 0 and min(category_ids) == 1
            else ""
        )
        raise InputError(f"has category id {shown(number)}, expected one of {listed(sorted(category_ids))}{hint}")


def _masks(path: str, entries: list[dict[str, Any]], sizes: list[tuple[int, int] | None]) -> np.ndarray | None:
    """Return the masks of the detections as run lengths, None if one has none."""
    if not entries or not all(entry.get("segmentation") and size for entry, size in zip(entries, sizes, strict=True)):
        return None
    masks = np.empty(len(entries), object)
    for number, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        assert size is not None  # checked above
        try:
            masks[number] = validated_run_lengths(entry["segmentation"], size)
        except UnusableSegmentation as error:
            raise InputError(f"{path}: a detection in image {shown(entry.get('image_id'))} has {error}") from error
    return masks
