"""Findings about labels: classes, counts, and boxes."""

from collections.abc import Iterator

import numpy as np

from dataset.class_names import note_of_alike_names
from dataset.records.labeled_records import LabeledImages
from efficientdet.data_checks.findings import Finding, counted, named, share
from efficientdet.families.hyperparameters import Hyperparameters
from object_detection.coco.matching import box_overlap, near_pairs
from object_detection.coco.results import boxes_xywh

DUPLICATE = 0.8  # IoU of two boxes of one class from which they count as one object labeled twice
_MANY_DUPLICATES, _MANY_EMPTY, _MANY_LEFT_OUT = 0.02, 0.5, 0.001
_SLOT_STEP = 8
CROWDS_ADVICE = "--crowds_as_objects of create_tfrecord.py converts them as ordinary objects"


def label_findings(images: LabeledImages, hparams: Hyperparameters, *, trains: bool = True) -> Iterator[Finding]:
    """Yield all findings about the labels of a split that `trains` a detector, or is used for evaluation."""
    if line := note_of_alike_names(images.class_names.names):
        yield Finding("class names", True, line)
    yield from unusable_classes(images, hparams, trains=trains)
    names = images.class_names.names
    if absent := [names[number] for number in np.flatnonzero(np.bincount(images.classes, minlength=len(names)) == 0)]:
        line = f"{len(absent)} of {len(names)} classes have no object: {named(absent)}"
        yield Finding("absent classes", trains, line)
    yield from _images(images, hparams)
    yield from _boxes(images)


def usable_objects(images: LabeledImages, hparams: Hyperparameters, *, trains: bool) -> np.ndarray:
    """Return which objects are used as positives in training, or counted in evaluation, [N] bool."""
    if trains:
        return ~images.crowd | hparams.train_on_crowds
    return ~(images.crowd | images.difficult)


def unusable_objects(images: LabeledImages, hparams: Hyperparameters, *, trains: bool) -> str:
    """Return the numbers of objects that cannot be used, such as 12 crowds, 3 difficult; empty if all can."""
    unusable = ~usable_objects(images, hparams, trains=trains)
    crowds, difficult = np.sum(images.crowd & unusable), np.sum(~images.crowd & unusable)
    parts = [counted(crowds, "crowd", "crowds")] if crowds else []
    return ", ".join([*parts, *([f"{difficult} difficult"] if difficult else [])])


def unusable_classes(images: LabeledImages, hparams: Hyperparameters, *, trains: bool) -> Iterator[Finding]:
    """Yield a finding about classes all of whose objects are crowds, or in evaluation crowds or difficult."""
    usable, count = usable_objects(images, hparams, trains=trains), len(images.class_names)
    counts, usable_counts = (np.bincount(some, minlength=count) for some in (images.classes, images.classes[usable]))
    listed = [
        f"{images.class_names.names[number]} ({counted(counts[number], 'object', 'objects')})"
        for number in np.flatnonzero((counts > 0) & (usable_counts == 0))
    ]
    if listed:
        use = "trained on" if trains else "counted in the AP"
        kinds = unusable_objects(images, hparams, trains=trains)
        yield Finding(
            "unusable classes",
            True,
            f"{len(listed)} of {count} classes have no object that is {use}: {named(listed)}; "
            f"{'' if usable.any() else 'no class has one, '}{kinds} in all; {CROWDS_ADVICE}",
        )


def duplicate_boxes(images: LabeledImages) -> np.ndarray:
    """Return pairs of objects [P, 2] of one class in one image with an IoU above DUPLICATE."""
    keys, boxes = images.owners.astype(np.int64) * len(images.class_names) + images.classes, boxes_xywh(images.boxes)
    overlap = box_overlap(boxes, boxes, np.zeros(len(boxes), bool))
    one, other, ious = near_pairs(keys, keys, overlap, least=DUPLICATE)
    return np.stack([one, other], axis=1)[(one < other) & (ious > DUPLICATE)]


def _images(images: LabeledImages, hparams: Hyperparameters) -> Iterator[Finding]:
    """Yield findings about images without objects, or with more objects than slots."""
    counts, slots = images.counts(), hparams.max_instances_per_image
    if empty := _names(images, np.flatnonzero(counts == 0)):
        many = len(empty) > _MANY_EMPTY * len(images)
        advice = "; check for missing labels: these images are trained on as background" if many else ""
        line = f"{counted(len(empty), 'image has', 'images have')} no object ({share(len(empty) / len(images))}): "
        yield Finding("empty images", many, f"{line}{named(empty)}{advice}", images=empty)
    beyond = np.flatnonzero(counts > slots)
    if len(beyond) and not hparams.tile_size:  # a tile shows a few of the objects of an image
        enough = -(-int(counts.max()) // _SLOT_STEP) * _SLOT_STEP
        yield Finding(
            "slots",
            True,
            f"{counted(len(beyond), 'image has', 'images have')} more objects than max_instances_per_image={slots}, "
            f"the most {counts.max()}: {np.sum(counts[beyond] - slots)} are dropped in training; "
            f"max_instances_per_image={enough} keeps them",
            settings={"max_instances_per_image": enough},
            images=_names(images, beyond),
        )


def _boxes(images: LabeledImages) -> Iterator[Finding]:
    """Yield findings about boxes and images that were left out, and about boxes that were drawn twice."""
    total = max(len(images.boxes), 1)
    for lines, count, one, several in (
        (images.left_out, len(images.boxes), "box is", "boxes are"),
        (images.images_left_out, len(images), "image is", "images are"),
    ):
        if lines:
            more = f"; and {len(lines) - 3} more" if len(lines) > 3 else ""
            yield Finding(
                "left out",
                len(lines) > _MANY_LEFT_OUT * count,
                f"{counted(len(lines), one, several)} invalid and skipped: {'; '.join(lines[:3])}{more}",
                images=lines,
            )
    if len(pairs := duplicate_boxes(images)):
        where = _names(images, np.unique(images.owners[pairs[:, 0]]))
        yield Finding(
            "duplicate boxes",
            len(pairs) > _MANY_DUPLICATES * total,
            f"{counted(len(pairs), 'pair', 'pairs')} of nearly the same box of one class (IoU above {DUPLICATE}): "
            f"one object labeled twice? {named(where)}",
            images=where,
        )


def _names(images: LabeledImages, numbers: np.ndarray) -> list[str]:
    return [images.names[number] for number in numbers]
