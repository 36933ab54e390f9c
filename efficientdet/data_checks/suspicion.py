"""Ranking of the images that a person should inspect first."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.image_checks import BLANK, BRIGHT, DARK, Statistics
from efficientdet.data_checks.label_checks import duplicate_boxes, whole_image_boxes

_FEW = 2.5  # standard deviations of the logarithm of the number of objects
_TINY = 2.0  # pixels of a side at the network's input
_THIN = 12.0  # longer side by shorter


def suspicions(
    images: LabeledImages, statistics: Statistics, *, input_sides: np.ndarray, alike: Sequence[int], slots: int
) -> list[tuple[int, list[str]]]:
    """Return image numbers with reasons, the most suspicious first.

    input_sides [N]: the shorter side of each box in pixels of the network's input; alike: images that look like
    another.
    """
    reasons: dict[int, Counter] = defaultdict(Counter)

    def add(numbers, reason: str) -> None:
        for number in np.asarray(numbers, int).tolist():
            reasons[number][reason] += 1

    counts, owners = images.counts(), images.owners
    labeled = counts[counts > 0]
    if len(labeled):
        logarithms = np.log(labeled)
        spread = max(float(np.std(logarithms)), 0.1)
        few = counts < np.exp(np.median(logarithms) - _FEW * spread)
        add(np.flatnonzero(few & (counts > 0)), f"few boxes (usual: {np.median(labeled):.0f})")
        add(np.flatnonzero(counts == 0), "no box")
    add(np.flatnonzero(counts > slots), "more objects than max_instances_per_image")
    sides = images.boxes[:, 2:] - images.boxes[:, :2]
    positive = ~images.crowd
    add(owners[duplicate_boxes(images)[:, 0]], "same box twice")
    add(owners[whole_image_boxes(images) & positive], "box covers nearly the whole image")
    add(owners[(input_sides < _TINY) & positive], f"box under {_TINY:g} pixels at the input")
    add(owners[(sides.max(axis=1) > _THIN * sides.min(axis=1)) & positive], "very thin box")
    add(alike, "may be a near-duplicate")
    for number, measured in statistics.items():
        if measured is None:
            add([number], "cannot be decoded")
        elif measured.contrast < BLANK or not DARK <= measured.brightness <= BRIGHT:
            add([number], "dark, white or blank")
    ranked = sorted(reasons, key=lambda number: (-len(reasons[number]), -sum(reasons[number].values()), number))
    return [
        (number, [f"{count} x {reason}" if count > 1 else reason for reason, count in reasons[number].items()])
        for number in ranked
    ]
