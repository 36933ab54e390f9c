"""Labels that are probably wrong, found with the detections of models that were not trained on their images.

Four kinds: missing (a detection without a label), wrong class, badly placed, superfluous (a label without a detection).
The evidence for each is a number computed from scores and IoU. Its probability compares two distributions of this
number: of the given labels, and of labels in which an error was made at random. The share of errors is the largest that
both allow; the ratio of the distributions, times this share, is the probability of an error, as in learning from
positive and unlabeled examples (Elkan and Noto 2008, https://doi.org/10.1145/1401890.1401920). The detections in an
image do not depend on its labels, so that errors are made without a training.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from object_detection.coco.comparison import Comparison
from object_detection.coco.label_evidence import (
    BADLY_PLACED,
    KINDS,
    MISSING,
    SUPERFLUOUS,
    WRONG_CLASS,
    Evidence,
    LabeledImage,
    evidence_of,
    evidence_of_errors,
    labeled_images,
)
from object_detection.coco.matching import IOU_THRESHOLDS

_FEWEST = 5  # given labels or detections with the strongest evidence, from which the number of errors is estimated
_OF_LABELS = tuple(kind for kind in KINDS if kind != MISSING)


class Suspect(NamedTuple):
    """A label that is probably wrong, or a missing one."""

    kind: str  # one of KINDS
    probability: float  # that there is such an error
    harm: float  # expected: the probability times the share of IOU_THRESHOLDS at which the label counts as wrong
    image: int  # number of the image in the comparison
    label: int  # row of the object in the comparison; -1: missing
    box: np.ndarray | None  # [4] x, y, width, height of the proposed label; None: the label is to be removed
    class_index: int  # class of the proposed label; -1: the label is to be removed


def find_suspects(comparison: Comparison, boxes: np.ndarray, *, seed: int = 0) -> list[Suspect]:
    """Return at most one suspect for each label, and the detections without labels, by falling expected harm.

    Args:
        comparison: detections and labels. Crowds and labels marked difficult are no suspects.
        boxes: [D, 4] x, y, width, height of the detections of the comparison.
        seed: seed of the errors that are made.
    """
    images = labeled_images(comparison, boxes, calibrated_scores(comparison))
    evidence = [evidence_of(image) for image in images]
    made = evidence_of_errors(images, np.random.default_rng(seed))
    given = {kind: np.concatenate([one.values[kind] for one in evidence]) for kind in KINDS} if evidence else {}
    labels = sum(len(image.labels) for image in images)
    chances = error_probabilities(given, made, labels=labels)
    suspects: list[tuple[Suspect, float]] = []
    starts = dict.fromkeys(KINDS, 0)
    for number, (image, of_image) in enumerate(zip(images, evidence, strict=True)):
        here = {}
        for kind, values in of_image.values.items():
            here[kind] = chances[kind][starts[kind] : starts[kind] + len(values)]
            starts[kind] += len(values)
        suspects += _suspects(number, image, of_image, here)
    suspects.sort(key=lambda one: (-one[0].harm, -one[1]))
    return [suspect for suspect, _ in suspects]


def expected_errors(suspects: list[Suspect]) -> int:
    """Return the number of errors that the probabilities sum to, rounded up."""
    return int(np.ceil(sum(suspect.probability for suspect in suspects) - 1e-9))


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


def calibrated_scores(comparison: Comparison) -> np.ndarray:
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
