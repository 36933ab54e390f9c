"""Evidence for errors in labels: labels compared with the objects that detections propose."""

from typing import NamedTuple

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.matching import box_overlap

MISSING, WRONG_CLASS, BADLY_PLACED, SUPERFLUOUS = KINDS = ("missing", "wrong_class", "badly_placed", "superfluous")
_SAME_PLACE = 0.5  # IoU of detections of one object, and of a label with its object
_NEAR = 0.1  # IoU from which a label may be meant for an object, TIDE's IoU of background
_DRAWS = 4  # errors made for each label
_SHIFT, _SCALE = 0.5, 0.5  # largest shift of a badly placed label, in sides, and change of a side, as logarithm
_MISPLACED = (0.2, 0.7)  # IoU of a badly placed label with the right one


class LabeledImage(NamedTuple):
    """G labels of an image and P proposals, the places of its detections of any class."""

    labels: np.ndarray  # [G] rows of objects in the comparison
    boxes: np.ndarray  # [G, 4] x, y, width, height
    classes: np.ndarray  # [G]
    proposals: np.ndarray  # [P, 4] x, y, width, height
    precision: np.ndarray  # [P, K] calibrated score of each class, 0 without a detection
    owners: np.ndarray  # [P] the label in the same place, 0 .. G-1; -1: none
    support: np.ndarray  # [K] mean `confirmations` of the labels of a class, in all images

    @property
    def confidence(self) -> np.ndarray:
        """[P] calibrated score of the best class."""
        return self.precision.max(axis=1, initial=0)

    @property
    def confirmations(self) -> np.ndarray:
        """[G] confidence of the best proposal in the place of each label, 0 without one."""
        best, owned = np.zeros(len(self.labels)), self.owners >= 0
        np.maximum.at(best, self.owners[owned], self.confidence[owned])
        return best


class Evidence(NamedTuple):
    """Evidence against n labels, each compared with one of the proposals that are in no other label's place."""

    values: dict[str, np.ndarray]  # by kind, larger for worse labels: [n]; of MISSING: [U]
    proposals: np.ndarray  # [n] -1: none
    ious: np.ndarray  # [n] with the proposal, 0 without
    other_classes: np.ndarray  # [n] the proposal's best class except that of the label
    unlabeled: np.ndarray  # [U] proposals that are in no label's place and with which no label was compared


def labeled_images(comparison: Comparison, boxes: np.ndarray, precision: np.ndarray) -> list[LabeledImage]:
    """Return labels and proposals of each image; those of ignored objects are left out.

    Args:
        comparison: detections and labels.
        boxes: [D, 4] x, y, width, height of the detections.
        precision: [D] calibrated scores.
    """
    rows_of = []
    for numbers in (comparison.detections.images, comparison.objects.images):
        order = np.argsort(numbers, kind="stable")
        rows_of.append(np.split(order, np.searchsorted(numbers[order], np.arange(1, len(comparison.image_ids)))))
    images, none = [], np.zeros(len(comparison.names))
    for rows, objects in zip(*rows_of, strict=True):
        ignored = comparison.flags.ignored[objects]
        on_ignored = comparison.overlap(rows[:, None], objects[ignored]) >= _SAME_PLACE
        rows, labels = rows[~on_ignored.any(axis=1)], objects[~ignored]
        rows = rows[np.argsort(-precision[rows], kind="stable")]
        kept, of_class = _proposals(comparison, rows, boxes[rows], precision[rows])
        proposals, label_boxes = boxes[kept], comparison.object_boxes[labels]
        overlap = ious(proposals, label_boxes)
        owners = np.full(len(kept), -1)
        if len(labels):
            owners = np.where(overlap.max(axis=1) >= _SAME_PLACE, overlap.argmax(axis=1), -1)
        classes = comparison.objects.classes[labels]
        images.append(LabeledImage(labels, label_boxes, classes, proposals, of_class, owners, none))
    classes = np.concatenate([image.classes for image in images])
    total, count = (
        np.bincount(classes, weights=weights, minlength=len(none))
        for weights in (np.concatenate([image.confirmations for image in images]), None)
    )
    support = np.maximum(total / np.maximum(count, 1), 1e-6)
    return [image._replace(support=support) for image in images]


def _proposals(
    comparison: Comparison, rows: np.ndarray, boxes: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows [P] of the best detection in each place, and the best score of each class there [P, K]."""
    overlap = ious(boxes, boxes) >= _SAME_PLACE
    remaining, kept, scores = np.ones(len(rows), bool), [], []
    for number in range(len(rows)):
        if remaining[number]:
            here = remaining & overlap[number]
            here[number] = True  # a box without area has no IoU
            of_class = np.zeros(len(comparison.names))
            np.maximum.at(of_class, comparison.detections.classes[rows[here]], precision[here])
            remaining &= ~here
            kept.append(number)
            scores.append(of_class)
    return rows[kept], np.array(scores).reshape(-1, len(comparison.names))


def ious(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the IoU [n, m] of boxes [n, 4] and [m, 4], x, y, width, height."""
    overlap = box_overlap(some, others, np.zeros(len(others), bool))
    return overlap(np.arange(len(some))[:, None], np.arange(len(others)))


def evidence_of(image: LabeledImage) -> Evidence:
    """Return the evidence against the labels of an image."""
    return _evidence(image, image.boxes, image.classes, np.arange(len(image.labels)))


def _evidence(image: LabeledImage, boxes: np.ndarray, classes: np.ndarray, replaced: np.ndarray) -> Evidence:
    """Return the evidence against n labels, each in place of the label `replaced` [n]; -2: in addition to all."""
    count, confidence = len(boxes), image.confidence
    if not count or not len(confidence):
        none = np.zeros(count)
        values = {WRONG_CLASS: none - 1, BADLY_PLACED: none, SUPERFLUOUS: none}
        unlabeled = np.flatnonzero(image.owners == -1)
        return Evidence(
            {MISSING: confidence[unlabeled], **values}, none.astype(int) - 1, none, classes.astype(int), unlabeled
        )
    is_free = (image.owners == -1) | (image.owners == replaced[:, None])
    overlap = ious(boxes, image.proposals)
    # Also by proposals in other labels' places: of objects that overlap, one is detected
    support = (confidence * np.minimum(overlap / _SAME_PLACE, 1)).max(axis=1)
    overlap = np.where(is_free & (overlap >= _NEAR), overlap, 0.0)
    rows, best = np.arange(count), (overlap * confidence).argmax(axis=1)
    iou, own = overlap[rows, best], image.precision[best, classes]
    others = image.precision[best]
    others[rows, classes] = -1.0
    proposals = np.where(iou > 0, best, -1)
    unlabeled = np.setdiff1d(np.flatnonzero(image.owners == -1), proposals)
    values = {
        MISSING: confidence[unlabeled],
        WRONG_CLASS: np.where(iou >= _SAME_PLACE, others.max(axis=1) - own, -1.0),
        BADLY_PLACED: confidence[best] * (1 - iou) * (iou > 0),
        SUPERFLUOUS: -support / image.support[classes],
    }
    return Evidence(values, proposals, iou, others.argmax(axis=1), unlabeled)


def evidence_of_errors(images: list[LabeledImage], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the evidence [m] of each kind after errors of this kind: labels removed, renamed, moved and added."""
    made: dict[str, list[np.ndarray]] = {kind: [np.zeros(0)] for kind in KINDS}
    sides = np.concatenate([np.zeros((0, 2)), *(image.boxes[:, 2:] for image in images)])
    all_classes = np.concatenate([np.zeros(0, int), *(image.classes for image in images)])
    for image in images:
        count, num_classes = len(image.labels), image.precision.shape[1]
        made[MISSING].append(image.confirmations)
        rows = np.repeat(np.arange(count), _DRAWS)
        if num_classes > 1:
            renamed = (image.classes[rows] + rng.integers(1, num_classes, len(rows))) % num_classes
            made[WRONG_CLASS].append(_evidence(image, image.boxes[rows], renamed, rows).values[WRONG_CLASS])
        rows, boxes = _moved(image.boxes, rows, rng)
        made[BADLY_PLACED].append(_evidence(image, boxes, image.classes[rows], rows).values[BADLY_PLACED])
        if len(sides):
            like = rng.integers(len(sides), size=_DRAWS * max(count, 1))
            fits, boxes = _added(image, sides[like], rng)
            boxes, classes = boxes[fits], all_classes[like[fits]]
            made[SUPERFLUOUS].append(_evidence(image, boxes, classes, np.full(len(boxes), -2)).values[SUPERFLUOUS])
    return {kind: np.concatenate(values) for kind, values in made.items()}


def _moved(boxes: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return badly placed copies of boxes [G, 4], and the number of the box of each."""
    sides = boxes[rows, 2:]
    centers = boxes[rows, :2] + sides / 2 + sides * rng.uniform(-_SHIFT, _SHIFT, sides.shape)
    sides = sides * np.exp(rng.uniform(-_SCALE, _SCALE, sides.shape))
    moved = np.concatenate((centers - sides / 2, sides), axis=1)
    overlap = box_overlap(moved, boxes, np.zeros(len(boxes), bool))(np.arange(len(rows)), rows)
    chosen = (overlap >= _MISPLACED[0]) & (overlap <= _MISPLACED[1])
    return rows[chosen], moved[chosen]


def _added(image: LabeledImage, sides: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return which [n] bool of boxes with these sides [n, 2] are in the image and in no label's place, and the boxes.

    The image is taken to be as large as its labels and proposals reach.
    """
    limits = np.concatenate((image.boxes, image.proposals, np.zeros((1, 4))))
    room = (limits[:, :2] + limits[:, 2:]).max(axis=0) - sides
    boxes = np.concatenate((rng.uniform(size=sides.shape) * room, sides), axis=1)
    return (room > 0).all(axis=1) & (ious(boxes, image.boxes).max(axis=1, initial=0) < _SAME_PLACE), boxes
