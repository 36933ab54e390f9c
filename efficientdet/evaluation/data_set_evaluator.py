"""Detections of a data set, and their evaluator by the ground truth in records or in a COCO JSON file."""

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from dataset.class_names import ClassNames
from dataset.conversion.segmentation import UnusableSegmentation, validated_run_lengths
from dataset.files.bounded_files import read_json
from dataset.files.untrusted_values import error_context, finite_number, listed, shown
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.pipeline import original_images
from dataset.input.record_batches import RecordBatches
from dataset.records.labeled_records import image_names_of_text_ids
from dataset.records.record_index import RecordIndex
from dataset.records.schema import ids_of_texts
from efficientdet.devices.distributed import World
from efficientdet.inference.runtimes import Predictor
from efficientdet.inference.tiles import rows_of_tiles
from object_detection.coco.evaluation import CocoEvaluator, GroundTruth, ground_truth_from_dataset
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.results import CocoResults, DetectionRows
from object_detection.coco.run_length_masks import RunLengths
from program_support.errors import InputError
from program_support.progress import Progress

if TYPE_CHECKING:  # train.py starts without detection in images
    from efficientdet.inference.detect import Detect, Detector


def read_evaluator(index: RecordIndex | None, class_names: ClassNames, *, json_file: str | None) -> CocoEvaluator:
    """Return an evaluator for the ground truth of a COCO JSON file or, without one, of the records.

    The records may be left out if there is a file.

    Raises:
        InputError: the categories of the file are not the detector's classes.
    """
    if json_file is not None:
        dataset = ground_truth_from_dataset(read_json(json_file), source=json_file)
        truth = with_category_ids(dataset, class_names)
        truth = truth if index is None else _with_record_ids(truth, index)
        return CocoEvaluator(truth, segmentations=lambda: _proved_segmentations(truth))
    assert index is not None  # there are records or a file
    truth = ground_truth_from_dataset(ground_truth_of_records(index, class_names), source="the records")

    def segmentations() -> list:
        annotations = ground_truth_of_records(index, class_names, with_masks=True)["annotations"]
        return [annotation["segmentation"] for annotation in annotations]

    return CocoEvaluator(truth, segmentations=segmentations)


def detect_all(
    predict: Predictor,
    batches: RecordBatches,
    *,
    class_names: ClassNames,
    world: World | None = None,
    interruptible: Callable[[Iterable], Iterable] = iter,
    masks_in_whole_pixels: bool = False,
) -> DetectionRows:
    """Detect in the batches of an `evaluation_dataset`, a rank's own, and return the rows of all ranks on every rank.

    Masks are pasted into the images; for `masks_in_whole_pixels` see
    `pasted_masks`. The batches are iterated through `interruptible`, which may raise between or after them; a device
    gets the next one while it detects. The detections of tiles are merged to those of their images.
    """
    from efficientdet.devices.device import device_prefetch  # Keras, which results of a file do not need

    world, results = world or World(), CocoResults()
    batches_ahead = device_prefetch(batches) if world.devices == 1 else batches
    detections = _detections(
        predict, interruptible(batches_ahead), class_names=class_names, masks_in_whole_pixels=masks_in_whole_pixels
    )
    with Progress("eval", total=batches.images, noun="image", silent=not world.is_first) as progress:
        for rows in detections:
            results.add_rows(rows)
            progress.advance(len(rows.evaluated_ids), images=len(rows.evaluated_ids))
    if world.size == 1:
        return results.rows()
    everything = CocoResults()
    for rows in world.gather(results.rows()):
        everything.add_rows(rows)
    return everything.rows()


def _detections(
    predict: Predictor, batches: Iterable, *, class_names: ClassNames, masks_in_whole_pixels: bool
) -> Iterator[DetectionRows]:
    """Yield the detections of each batch or, in tiles, of each image when all of its tiles are there."""
    parts = _parts(predict, batches, class_names=class_names, masks_in_whole_pixels=masks_in_whole_pixels)
    for image, of_image in itertools.groupby(parts, key=lambda part: part[0]):
        if image is None:
            yield from (rows for *_, rows in of_image)
            continue
        _, tiles, of_tiles = zip(*of_image, strict=True)
        _, image_id, size = image
        yield rows_of_tiles(list(of_tiles), np.array(tiles), size=size).with_image_id(image_id)


def _parts(
    predict: Predictor, batches: Iterable, *, class_names: ClassNames, masks_in_whole_pixels: bool
) -> Iterator[tuple[tuple[int, int, tuple[int, ...]] | None, Any, DetectionRows]]:
    """Yield the detections of each batch, or of each tile behind the number, id and size of its image and its place."""
    category_ids = np.asarray(class_names.category_ids)
    for batch, row_valid, *places in batches:
        detections = predict(batch.images, batch.sizes, batch.scales)
        rows = np.asarray(row_valid)
        boxes, scores, classes, valid = (np.asarray(values)[rows] for values in detections[:4])
        image_ids, in_batch = np.asarray(batch.image_ids)[rows], CocoResults()
        in_batch.add(
            np.arange(len(image_ids)) if places else image_ids,
            boxes,
            scores=scores,
            category_ids=category_ids[classes],
            valid=valid,
            masks=None if detections.masks is None else np.asarray(detections.masks)[rows],
            original_sizes=np.rint(np.asarray(batch.sizes) * np.asarray(batch.scales)).astype(np.int64)[rows],
            masks_in_whole_pixels=masks_in_whole_pixels,
        )
        found = in_batch.rows()
        if not places:
            yield None, None, found
            continue
        numbers, tiles, sizes = (np.asarray(values)[rows] for values in (batch.positions, *places))
        images = zip(numbers.tolist(), image_ids.tolist(), map(tuple, sizes.tolist()), strict=True)
        for place, (image, tile) in enumerate(zip(images, tiles, strict=True)):
            yield image, tile, found.chosen(found.image_ids == place)


def write_measures(path: str | Path, measures: CocoMeasures) -> None:
    """Write the metrics as JSON."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measures.to_json(), indent=1) + "\n", encoding="utf-8")


def _proved_segmentations(truth: GroundTruth) -> list[RunLengths | None]:
    """Return the run lengths of each annotation; None without a mask or size.

    Raises:
        InputError: for an invalid mask.
    """
    return [
        _run_lengths(
            annotation,
            truth.image_sizes.get(annotation["image_id"]),
            where=f"{truth.source}: annotations[{annotation['id'] - 1}]",
        )
        for annotation in truth.annotations
    ]


def _run_lengths(entry: Mapping[str, Any], size: tuple[int, int] | None, *, where: str) -> RunLengths | None:
    """Return the run lengths of an annotation or a detection; None without a mask or size."""
    if not (size and entry.get("segmentation")):
        return None
    try:
        return validated_run_lengths(entry["segmentation"], size)
    except UnusableSegmentation as error:
        raise InputError(f"{where} of image {shown(entry.get('image_id'))} has {error}") from error


def _with_record_ids(truth: GroundTruth, index: RecordIndex) -> GroundTruth:
    """Return the ground truth with the image ids of the records; images are matched by file name if ids are text.

    Raises:
        InputError: no file name matches.
    """
    names = image_names_of_text_ids(index)
    if not names:
        return truth
    id_of = dict(zip([name for name, _ in names], ids_of_texts([text for _, text in names]), strict=True))
    new_id = {
        image_id: id_of[name]
        for image_id, path in truth.file_names.items()
        if (name := path.replace("\\", "/").rpartition("/")[2]) in id_of
    }
    if not new_id:
        raise InputError(
            f"{truth.source}: has no image named {names[0][0]}; the image ids of the records are text, so "
            "images are matched by file name"
        )
    return replace(
        truth,
        image_sizes={new_id[image_id]: size for image_id, size in truth.image_sizes.items() if image_id in new_id},
        file_names={new_id[image_id]: truth.file_names[image_id] for image_id in new_id},
        annotations=tuple(
            {**annotation, "image_id": new_id[annotation["image_id"]]}
            for annotation in truth.annotations
            if annotation["image_id"] in new_id
        ),
    )


def with_category_ids(truth: GroundTruth, class_names: ClassNames) -> GroundTruth:
    """Return the ground truth with the detector's category ids; classes are matched by name.

    Raises:
        InputError: for a class that only one of the two has.
    """
    ours = class_names.by_name()
    names = [name.strip() for name in truth.categories.values()]
    if sorted(names) != sorted(ours):
        name = next(name for name in [*names, *ours] if names.count(name) != (name in ours))
        raise InputError(
            f"{truth.source}: has {names.count(name)} categories named {shown(name)}, the detector has "
            f"{int(name in ours)}; expected the same classes"
        )
    new_id = {category_id: ours[name] for category_id, name in zip(truth.categories, names, strict=True)}
    if all(category_id == same for category_id, same in new_id.items()):
        return truth
    return replace(
        truth,
        categories=class_names.by_id(),
        annotations=tuple(
            {**annotation, "category_id": new_id[annotation["category_id"]]} for annotation in truth.annotations
        ),
    )


def rows_of_detector(
    detector: "Detector",
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
    id_of = class_names.by_name()
    unknown = -1  # evaluators leave out detections of categories that they do not know
    ids = np.array([id_of.get(name, unknown) for name in detector.class_names.names], np.int64)
    return rows._replace(category_ids=ids[np.searchsorted(detector.class_names.category_ids, rows.category_ids)])


def detect_images(detect: "Detect", index: RecordIndex, *, samples: int = 0) -> DetectionRows:
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
        path: the JSON file.
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
    position = {image_id: number for number, image_id in enumerate(list(images)[: samples or None])}
    entries = read_json(path)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{path}: is no file of results; expected COCO's list of image_id, category_id, bbox and score"
        )
    found: list[tuple[int, float, int, tuple[float, ...], dict[str, Any]]] = []
    for number, (entry, image_id) in enumerate(zip(entries, _image_ids(path, entries, images), strict=True)):
        with error_context(f"{path}: detection {number}"):
            _check_category(entry.get("category_id"), class_names.category_ids)
            box = entry.get("bbox")
            if not isinstance(box, list) or len(box) != 4:
                raise InputError(f"has bbox {shown(box)}, expected x, y, width and height in pixels")
            x, y, width, height = (finite_number(side, "bbox") for side in box)
            score = finite_number(entry.get("score"), "score")
        if image_id in position:
            found.append((position[image_id], -score, image_id, (y, x, y + height, x + width), entry))
    found.sort(key=itemgetter(0, 1))
    _, losses, image_ids, boxes, used = zip(*found, strict=True) if found else ((), (), (), (), ())
    masks = np.empty(len(used), object)
    masks[:] = [
        _run_lengths(entry, truth.image_sizes.get(image_id), where=f"{path}: a detection")
        for image_id, entry in zip(image_ids, used, strict=True)
    ]
    return DetectionRows(
        image_ids=np.array(image_ids, np.int64),
        boxes=np.array(boxes, np.float32).reshape(-1, 4),
        scores=-np.array(losses, np.float32),
        category_ids=np.array([entry["category_id"] for entry in used], np.int64),
        evaluated_ids=np.array([*position], np.int64),
        masks=masks if used and None not in masks else None,
    )


def _image_ids(path: str, entries: list[dict[str, Any]], images: Mapping[int, str]) -> list[int]:
    """Return the image id of each detection in the data.

    Raises:
        InputError: in one line, for those without an image.
    """
    id_of: dict[str, int | None] = {}
    for image_id, name in images.items():
        for spelling in _spellings(name):  # None: two images have it
            id_of[spelling] = image_id if id_of.get(spelling, image_id) == image_id else None
    by_number = {str(image_id): image_id for image_id in images}

    def image_of(entry: dict[str, Any]) -> int | None:
        name, key = id_of and entry.get("file_name"), str(entry.get("image_id"))
        candidates = None if name else by_number.get(key), *map(id_of.get, _spellings(str(name or key)))
        return next((one for one in candidates if one is not None), None)

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
