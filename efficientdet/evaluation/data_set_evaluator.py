"""Detections of a data set, and their evaluator by the ground truth in records or in a COCO JSON file."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dataset.class_names import ClassNames
from dataset.conversion.segmentation import UnusableSegmentation, validated_run_lengths
from dataset.files.untrusted_values import shown
from dataset.input.ground_truth import ground_truth_of_records
from dataset.input.record_batches import RecordBatches
from dataset.records.labeled_records import image_names_of_text_ids
from dataset.records.record_index import RecordIndex
from dataset.records.schema import ids_of_texts
from efficientdet.devices.distributed import World
from efficientdet.inference.runtimes import Predictor
from efficientdet.inference.tiles import rows_of_tiles
from object_detection.coco.evaluation import CocoEvaluator
from object_detection.coco.ground_truth import GroundTruth, ground_truth_from_dataset, read_ground_truth
from object_detection.coco.measures import CocoMeasures
from object_detection.coco.results import CocoResults, DetectionRows
from object_detection.coco.run_length_masks import RunLengths
from program_support.errors import InputError
from program_support.progress import Progress


def read_evaluator(index: RecordIndex | None, class_names: ClassNames, *, json_file: str | None) -> CocoEvaluator:
    """Return an evaluator for the ground truth of a COCO JSON file or, without one, of the records.

    The records may be left out if there is a file.

    Raises:
        InputError: the categories of the file are not the detector's classes.
    """
    if json_file is not None:
        truth = with_category_ids(read_ground_truth(json_file), class_names)
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
    `pasted_masks`. The batches are iterated through `interruptible`, which may raise between or after them. The
    detections of tiles are merged to those of their images.
    """
    world, results = world or World(), CocoResults()
    detections = _detections(
        predict, interruptible(batches), class_names=class_names, masks_in_whole_pixels=masks_in_whole_pixels
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
    category_ids = np.asarray(class_names.category_ids)
    image: tuple[int, int, tuple[int, ...]] | None = None  # number of its record, id and size
    pending: list[tuple[np.ndarray, DetectionRows]] = []  # tiles of this image

    def merged() -> DetectionRows:
        assert image is not None  # there are tiles
        tiles, parts = zip(*pending, strict=True)
        pending.clear()
        return rows_of_tiles(list(parts), np.array(tiles), size=image[2]).with_image_id(image[1])

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
            yield found
            continue
        numbers, tiles, sizes = (np.asarray(values)[rows] for values in (batch.positions, *places))
        images = zip(numbers.tolist(), image_ids.tolist(), map(tuple, sizes.tolist()), strict=True)
        for place, (of_tile, tile) in enumerate(zip(images, tiles, strict=True)):
            if pending and of_tile != image:
                yield merged()
            image = of_tile
            pending.append((tile, found.chosen(found.image_ids == place)))
    if pending:
        yield merged()


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
    checked = []
    for annotation in truth.annotations:
        segmentation, size = annotation.get("segmentation"), truth.image_sizes.get(annotation["image_id"])
        try:
            checked.append(validated_run_lengths(segmentation, size) if segmentation and size else None)
        except UnusableSegmentation as error:
            raise InputError(
                f"{truth.source}: annotations[{annotation['id'] - 1}] of image {annotation['image_id']} has {error}"
            ) from error
    return checked


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
    ours = dict(zip(class_names.names, class_names.category_ids, strict=True))
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
        categories=dict(zip(class_names.category_ids, class_names.names, strict=True)),
        annotations=tuple(
            {**annotation, "category_id": new_id[annotation["category_id"]]} for annotation in truth.annotations
        ),
    )
