"""Expected gain of labeling an image: doubt of the detector, rare classes, and novelty.

Imports no network: detections, counts and features in, numbers out.
"""

from collections.abc import Mapping

import numpy as np

from dataset.class_names import ClassNames
from object_detection.coco.results import DetectionRows
from object_detection.geometry.box_geometry import pairwise_iou

_LOWEST_SCORE = 0.1  # of a detection; detectors return many with less, in every image
_SAME_OBJECT = 0.5  # IoU


def class_weights(counts: Mapping[str, int], class_names: ClassNames) -> dict[int, float]:
    """Return a weight by category id: the root of the mean number of labels of a class over that of this class.

    counts: labels by class name; a class without any counts as one.
    """
    numbers = np.array([max(counts.get(name, 0), 1) for name in class_names.names])
    return dict(zip(class_names.category_ids, np.sqrt(numbers.mean() / numbers).tolist(), strict=True))


def uncertainty(rows: DetectionRows, mirrored: DetectionRows, weights: Mapping[int, float]) -> float:
    """Return the doubt about the objects of an image in bits, summed over objects and weighted by class.

    An object's probability is its mean score in the image and in the mirror image, 0 where it was not detected, so that
    low scores and disagreement count alike: a committee of two views whose mean vote has the entropy
    (https://doi.org/10.1145/130385.130417; of detections: https://arxiv.org/abs/2103.12023).

    Args:
        rows: detections in the image.
        mirrored: detections in the mirror image, with boxes in pixels of the image.
        weights: of `class_weights`.
    """
    rows, mirrored = (view.chosen(view.scores >= _LOWEST_SCORE) for view in (rows, mirrored))
    scores, partner = rows.scores.astype(np.float64), mirrored.scores.astype(np.float64)
    if len(scores) and len(partner):
        shared = np.array(pairwise_iou(rows.boxes, mirrored.boxes))
        shared[rows.category_ids[:, None] != mirrored.category_ids] = 0
        for number in np.argsort(-scores, kind="stable"):
            other = int(shared[number].argmax())
            if shared[number, other] >= _SAME_OBJECT:
                scores[number] += partner[other]
                partner[other] = 0
                shared[:, other] = 0
    probabilities = np.clip(np.concatenate([scores, partner]) / 2, 1e-12, 1 - 1e-12)
    entropies = -probabilities * np.log2(probabilities) - (1 - probabilities) * np.log2(1 - probabilities)
    categories = np.concatenate([rows.category_ids, mirrored.category_ids])
    return float(entropies @ [weights[category] for category in categories.tolist()])


def choose(
    doubts: np.ndarray, features: np.ndarray, known: np.ndarray, *, count: int, strategy: str, seed: int = 0
) -> list[tuple[int, float]]:
    """Return up to `count` of n images, best first, each with its novelty when it was chosen, from 0 to 2.

    Novelty is the distance, 1 - cosine, to the nearest image that is labeled or was chosen before (k-center greedy,
    https://arxiv.org/abs/1708.00489); 1 without such an image. `expected_gain` takes the largest product of doubt and
    novelty, `diversity` the largest novelty, `uncertainty` the largest doubt.

    Args:
        doubts: [n], see `uncertainty`.
        features: [n, F] of the images.
        known: [m, F] of the labeled images.
        count: number of images.
        strategy: see `NextImagesOptions`.
        seed: of `random`.
    """
    features, known = _unit_vectors(features), _unit_vectors(known)
    novelty = 1 - (features @ known.T).max(axis=1) if len(known) else np.ones(len(features))
    values = np.ones_like(doubts) if strategy == "diversity" else doubts
    order = np.random.default_rng(seed).permutation(len(features))
    chosen: list[tuple[int, float]] = []
    is_left = np.ones(len(features), bool)
    for place in range(min(count, len(features))):
        if strategy == "random":
            best = int(order[place])
        else:
            worth = values if strategy == "uncertainty" else values * np.maximum(novelty, 0)
            # Novelty decides between equal worths, such as no doubt at all.
            best = int(np.lexsort((novelty, np.where(is_left, worth, -1.0)))[-1])
        chosen.append((best, float(novelty[best])))
        is_left[best] = False
        novelty = np.minimum(novelty, 1 - features @ features[best])
    return chosen


def _unit_vectors(features: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1)
