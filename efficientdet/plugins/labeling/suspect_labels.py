"""Labels that are probably wrong, found with the detections of models that were not trained on their images.

Four kinds: missing (a detection without a label), wrong class, badly placed, superfluous (a label without a detection).
The evidence for each is a number computed from scores and IoU. Its probability compares two distributions of this
number: of the given labels, and of labels in which an error was made at random. The share of errors is the largest that
both allow; the ratio of the distributions, times this share, is the probability of an error, as in learning from
positive and unlabeled examples (Elkan and Noto 2008, https://doi.org/10.1145/1401890.1401920). The detections in an
image do not depend on its labels, so that errors are made without a training.

The number of errors is counted where the evidence is sure: as many as have it, divided by the share of made errors that
have it. Detections show a missing label and another class in this way; they cannot tell a superfluous label from an
object that they miss, nor a badly placed one from a bad box of their own, of which only the largest number follows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from object_detection.coco.matching import IOU_THRESHOLDS, Comparison, box_overlap

MISSING, WRONG_CLASS, BADLY_PLACED, SUPERFLUOUS = KINDS = ("missing", "wrong_class", "badly_placed", "superfluous")
_SAME_PLACE = 0.5  # IoU of detections of one object, and of a label with its object
_NEAR = 0.1  # IoU from which a label may be meant for an object, TIDE's IoU of background
_DRAWS = 4  # errors made for each label
_SHIFT, _SCALE = 0.5, 0.5  # largest shift of a badly placed label, in sides, and change of a side, as logarithm
_MISPLACED = (0.2, 0.7)  # IoU of a badly placed label with the right one
_FEWEST = 5  # given labels or detections with the strongest evidence, from which the number of errors is estimated
_SHOWN = (MISSING, WRONG_CLASS)  # kinds that sure detections show
_SURE = 0.5  # evidence of these kinds: a calibrated score, and a difference of two
_QUANTILES = (0.5, 0.75, 0.875)  # of the evidence of made errors, from which errors are counted
_LEAST_SHARE = 0.1  # of the made errors
_OF_LABELS = tuple(kind for kind in KINDS if kind != MISSING)


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


class Suspect(NamedTuple):
    """A label that is probably wrong, or a missing one."""

    kind: str  # one of KINDS
    probability: float  # that there is such an error
    harm: float  # expected: the probability times the share of IOU_THRESHOLDS at which the label counts as wrong
    image: int  # number of the image in the comparison
    label: int  # row of the object in the comparison; -1: missing
    box: np.ndarray | None  # [4] x, y, width, height of the proposed label; None: the label is to be removed
    class_index: int  # class of the proposed label; -1: the label is to be removed


class ErrorCount(NamedTuple):
    """Number of errors, 0 where nothing is shown, and its 95 % interval."""

    estimate: float
    low: float
    high: float


def find_suspects(comparison: Comparison, boxes: np.ndarray) -> tuple[list[Suspect], dict[str, ErrorCount]]:
    """Return at most one suspect for each label, and the detections without labels, by falling expected harm.

    Also returns the number of errors of each kind that there can be.

    Args:
        comparison: detections and labels. Crowds and labels marked difficult are no suspects.
        boxes: [D, 4] x, y, width, height of the detections of the comparison.
    """
    images = _labeled_images(comparison, boxes, _calibrated_scores(comparison))
    evidence = [_evidence(image, image.boxes, image.classes, np.arange(len(image.labels))) for image in images]
    made = _evidence_of_errors(images, np.random.default_rng(0))
    given = {kind: [one.values[kind] for one in evidence] for kind in KINDS}
    joined = {kind: np.concatenate(values) for kind, values in given.items()}
    labels = sum(len(image.labels) for image in images)
    chances = error_probabilities(joined, made, labels=labels)
    counts = {
        kind: count_errors(values, made[kind], labels=labels, shown=kind in _SHOWN)
        for kind, values in joined.items()
        if len(made[kind])
    }
    ends = {kind: np.cumsum([len(part) for part in values])[:-1] for kind, values in given.items()}
    of_images = {kind: np.split(chances[kind], ends[kind]) for kind in KINDS}
    suspects: list[tuple[Suspect, float]] = []
    for number, (image, of_image) in enumerate(zip(images, evidence, strict=True)):
        suspects += _suspects(number, image, of_image, {kind: parts[number] for kind, parts in of_images.items()})
    suspects.sort(key=lambda one: (-one[0].harm, -one[1]))
    return [suspect for suspect, _ in suspects], counts


def count_errors(given: np.ndarray, made: np.ndarray, *, labels: int, shown: bool) -> ErrorCount:
    """Return the number of errors of a kind from the evidence [n] of the labels and [m] of errors that were made.

    Those with at least a certain evidence are errors of the labels or of the detector, so that each threshold limits
    the number. Limits are those of a Poisson variable, by the square root's variance.

    shown: evidence of at least `_SURE` is no error of the detector; else the estimate is 0.
    """
    thresholds = np.unique([*np.quantile(made, _QUANTILES), *([_SURE] if shown else ())])
    share = (made[:, None] >= thresholds).mean(axis=0)
    thresholds, share = thresholds[share >= _LEAST_SHARE], share[share >= _LEAST_SHARE]
    tails = (given[:, None] >= thresholds).sum(axis=0)
    highs = (np.sqrt(tails + 1) + 1) ** 2 / share
    high = float(highs.min(initial=labels))
    sure = np.flatnonzero((thresholds >= _SURE) & shown)
    if not len(sure):
        return ErrorCount(0.0, 0.0, high)
    best = sure[((tails + 1) / share)[sure].argmin()]  # few are too often too few: one more is counted
    low = min(float(max(np.sqrt(tails[best]) - 1, 0) ** 2 / share[best]), high)
    return ErrorCount(min(float(tails[best] / share[best]), high) if low >= 0.5 else 0.0, low, high)


def shown_errors(counts: dict[str, ErrorCount]) -> ErrorCount:
    """Return the number of missing labels and of those with a wrong class together."""
    estimates, low, high = np.array([counts[kind] for kind in _SHOWN if kind in counts]).reshape(-1, 3).T
    total = estimates.sum()
    spread = [np.sqrt(((limit - estimates) ** 2).sum()) for limit in (low, high)]
    return ErrorCount(float(total), float(max(total - spread[0], 0)), float(total + spread[1]))


def _suspects(
    number: int, image: LabeledImage, evidence: Evidence, chances: dict[str, np.ndarray]
) -> Iterator[tuple[Suspect, float]]:
    """Yield the suspects of an image and the evidence; a label has the kind with the largest expected harm."""
    is_near = evidence.proposals >= 0  # others can only be superfluous
    weights = {WRONG_CLASS: is_near, BADLY_PLACED: is_near * (evidence.ious[:, None] < IOU_THRESHOLDS).mean(axis=1)}
    harms = np.stack([chances[kind] * weights.get(kind, 1.0) for kind in _OF_LABELS])
    for g, best in enumerate(harms.argmax(axis=0).tolist()):
        kind, box, class_index = _OF_LABELS[best], image.boxes[g], int(evidence.other_classes[g])
        if kind == BADLY_PLACED:
            box, class_index = image.proposals[evidence.proposals[g]], int(image.classes[g])
        if harms[best, g] > 0:
            chance, harm = float(chances[kind][g]), float(harms[best, g])
            proposed = (None, -1) if kind == SUPERFLUOUS else (box, class_index)
            suspect = Suspect(kind, chance, harm, number, int(image.labels[g]), *proposed)
            yield suspect, float(evidence.values[kind][g])
    for row, chance in zip(evidence.unlabeled, chances[MISSING].tolist(), strict=True):
        if chance > 0:
            best_class = int(image.precision[row].argmax())
            suspect = Suspect(MISSING, chance, chance, number, -1, image.proposals[row], best_class)
            yield suspect, float(image.confidence[row])


def _calibrated_scores(comparison: Comparison) -> np.ndarray:
    """Return the precision [D] of detections of the same class and score, by isotonic regression."""
    outcomes, classes = comparison.outcomes, comparison.detections.classes
    precision = np.zeros(len(comparison.scores))
    for k in np.unique(classes):
        of_class = classes == k
        counted = np.flatnonzero(of_class & outcomes.counted)
        counted = counted[np.argsort(comparison.scores[counted], kind="stable")]
        if len(counted):
            fit = isotonic(outcomes.right[counted].astype(np.float64), np.ones(len(counted)))
            precision[of_class] = np.interp(comparison.scores[of_class], comparison.scores[counted], fit)
    return precision


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the rising values with the least weighted squared error, by pooling adjacent violators."""
    means: list[float] = []
    totals: list[float] = []  # weights
    counts: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        count = 1
        while means and means[-1] >= value:
            total = totals.pop() + weight
            value += (means.pop() - value) * (total - weight) / total
            weight, count = total, count + counts.pop()
        means.append(value)
        totals.append(weight)
        counts.append(count)
    return np.repeat(np.array(means, np.float64), counts)


def error_probabilities(
    given: dict[str, np.ndarray], made: dict[str, np.ndarray], *, labels: int
) -> dict[str, np.ndarray]:
    """Return the probability of an error of each kind from its evidence.

    The kinds are taken to be equally frequent. With weak evidence, as against labels of objects that are hard to find,
    nearly every label might be wrong; the kind that is limited most limits the others.

    Args:
        given: evidence [n] of each kind, larger for worse labels.
        made: evidence [m] of errors that were made; [0] if there can be none.
        labels: number of labels; an error in each of them would give `made`.
    """
    ratios, limit = {}, 1.0
    for kind, values in given.items():
        ratios[kind] = np.zeros(len(values))
        if len(values) >= _FEWEST and len(made[kind]):
            ratios[kind], share = _ratios(values, made[kind], weight=labels / len(made[kind]))
            limit = min(limit, share)
    # A share of 1 is no limit: errors would not change the evidence
    return {kind: np.minimum(limit * ratio, 1) if limit < 1 else 0 * ratio for kind, ratio in ratios.items()}


def _ratios(given: np.ndarray, made: np.ndarray, *, weight: float) -> tuple[np.ndarray, float]:
    """Return how many times likelier each evidence [n] is with errors, and the largest share of errors in the labels.

    weight: labels for each of the `made` errors.
    """
    values, is_made = np.concatenate((made, given)), np.arange(len(made) + len(given)) < len(made)
    order = np.lexsort((~is_made, values))  # of equal values those of made errors are first, which pools them
    share = np.empty(len(values))
    share[order] = isotonic(is_made[order].astype(np.float64), np.where(is_made, weight, 1.0)[order])
    share = share[~is_made]
    ends, numbers = np.unique(given, return_counts=True)
    tails = np.cumsum(numbers[::-1])[::-1]  # given ones with at least this evidence
    errors = weight * (len(made) - np.searchsorted(np.sort(made), ends))
    used = (tails >= _FEWEST) & (errors > 0)
    limits = tails[used] + 2 * np.sqrt(tails[used])  # upper limits of the mean of a Poisson variable
    return share / np.maximum(1 - share, 1e-9), float((limits / errors[used]).min(initial=1.0))


def _labeled_images(comparison: Comparison, boxes: np.ndarray, precision: np.ndarray) -> list[LabeledImage]:
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


def _evidence(image: LabeledImage, boxes: np.ndarray, classes: np.ndarray, replaced: np.ndarray) -> Evidence:
    """Return the evidence against n labels, each in place of the label `replaced` [n]; -2: in addition to all."""
    precision = np.pad(image.precision, ((0, 1), (0, 0)))  # a proposal at no place, for images without any
    confidence, owners = precision.max(axis=1), np.append(image.owners, -1)
    overlap = ious(boxes, np.pad(image.proposals, ((0, 1), (0, 0))))
    is_free = (owners == -1) | (owners == replaced[:, None])
    # Also by proposals in other labels' places: of objects that overlap, one is detected
    support = (confidence * np.minimum(overlap / _SAME_PLACE, 1)).max(axis=1)
    overlap = np.where(is_free & (overlap >= _NEAR), overlap, 0.0)
    rows, best = np.arange(len(boxes)), (overlap * confidence).argmax(axis=1)
    iou, own, others = overlap[rows, best], precision[best, classes], precision[best]
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


def _evidence_of_errors(images: list[LabeledImage], rng: np.random.Generator) -> dict[str, np.ndarray]:
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
