"""Findings about image contents: undecodable, dark or blank images, copies and near-duplicates."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dataset.conversion.image_statistics import ImageStatistics, near_duplicates
from dataset.records.labeled_images import LabeledImages
from efficientdet.data_checks.findings import NOTE, WARNING, Finding, counted, named, share

DARK, BRIGHT, BLANK = 25.0, 235.0, 4.0  # gray levels of 255: mean, mean, standard deviation
_MANY_ALIKE = 0.05
_OTHER_SIZE = "differ in size from their labels (another image, or EXIF rotation)"
_WARNED = ("cannot be decoded", _OTHER_SIZE)
Statistics = Mapping[int, ImageStatistics | None]
Pair = tuple[tuple[int, int], tuple[int, int], bool]


def image_findings(images: LabeledImages, statistics: Statistics) -> Iterator[Finding]:
    """Yield findings about the images of a split; `statistics` are measurements of the images that were read."""
    numbers_of = {
        "cannot be decoded": [number for number, measured in statistics.items() if measured is None],
        _OTHER_SIZE: [
            number
            for number, measured in statistics.items()
            if measured and measured.size != tuple(images.sizes[number])
        ],
        "are nearly black": _where(statistics, lambda measured: measured.brightness < DARK),
        "are nearly white": _where(statistics, lambda measured: measured.brightness > BRIGHT),
        "are a single color": _where(statistics, lambda measured: measured.contrast < BLANK),
    }
    for what, numbers in numbers_of.items():
        if numbers:
            names = [images.names[number] for number in numbers]
            yield Finding(
                about="images",
                level=WARNING if what in _WARNED else NOTE,
                images=names,
                line=f"{len(names)} of {len(statistics)} {what}: {named(names)}",
            )


def alike_images(splits: Sequence[LabeledImages], statistics: Sequence[Statistics]) -> list[Pair]:
    """Return pairs of identical or similar images, each as two (split, number) and whether their files are identical.

    Identical files are found among all images with digests in the records, near-duplicates among the images that were
    read.
    """
    first: dict[str, tuple[int, int]] = {}
    pairs: dict[tuple[tuple[int, int], tuple[int, int]], bool] = {}
    thumbnails: dict[tuple[int, int], np.ndarray] = {}
    for split, images in enumerate(splits):
        for number, stored in enumerate(images.digests):
            measured = statistics[split].get(number)
            if measured is not None:
                thumbnails[split, number] = measured.thumbnail
            digest = stored.decode("ascii", "replace") or (measured.digest.hex() if measured else "")
            if digest and (other := first.setdefault(digest, (split, number))) != (split, number):
                pairs[other, (split, number)] = True
    places = [*thumbnails]
    for i, j in near_duplicates([*thumbnails.values()]):
        pairs.setdefault((places[i], places[j]), False)
    return [(one, other, equal) for (one, other), equal in sorted(pairs.items())]


def alike_image_findings(splits: Sequence[LabeledImages], pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Yield findings about copies and near-duplicates across splits, which raise the measured AP, and in one split."""
    for equal, what in ((True, "with identical files"), (False, "that look alike (possible near-duplicates)")):
        listed = [(one, other) for one, other, same in pairs if same == equal]
        across = [_names(splits, one, other) for one, other in listed if one[0] != other[0]]
        within = [_names(splits, one, other) for one, other in listed if one[0] == other[0]]
        if across:
            harm = "the AP will be too high" if equal else "if they show the same scene, the AP will be too high"
            yield Finding(
                about="copies in both splits" if equal else "near-duplicates in both splits",
                level=WARNING,
                images=across,
                line=f"{_pairs(across)} of a training and a validation image {what}: {named(across)}; "
                f"{harm}; keep each pair in one split",
            )
        if within:
            many = len(within) > _MANY_ALIKE * sum(map(len, splits))
            yield Finding(
                about="copies" if equal else "near-duplicates",
                level=WARNING if many else NOTE,
                images=within,
                line=f"{_pairs(within)} of images of one split {what}: {named(within)}",
            )


def _names(splits: Sequence[LabeledImages], one: tuple[int, int], other: tuple[int, int]) -> str:
    return f"{splits[one[0]].names[one[1]]} and {splits[other[0]].names[other[1]]}"


def split_findings(training: LabeledImages, validation: LabeledImages) -> Iterator[Finding]:
    """Yield findings about classes that only one of the two splits has."""
    counts = [np.bincount(images.classes, minlength=len(images.class_names)) for images in (training, validation)]
    names = np.array(training.class_names.names)
    for level, mine, other, what in ((WARNING, 1, 0, "validation"), (NOTE, 0, 1, "training")):
        alone = (counts[mine] > 0) & (counts[other] == 0)
        lost = counts[mine][alone].sum() / max(counts[mine].sum(), 1)
        # One or two objects of a rare class may be due to chance; only a less likely difference is a warning.
        unlikely = alone & (counts[mine] / max(counts[mine].sum(), 1) * counts[other].sum() > 10)
        if alone.any():
            listed = [f"{name} ({count})" for name, count in zip(names[alone], counts[mine][alone], strict=True)]
            yield Finding(
                about="classes in one split",
                level=level if unlikely.any() else NOTE,
                line=f"{counted(alone.sum(), 'class has', 'classes have')} objects only in the {what} images "
                f"({share(lost)} of their objects): {named(listed)}",
            )


def _pairs(listed: Sequence[str]) -> str:
    return counted(len(listed), "pair", "pairs")


def _where(statistics: Statistics, condition) -> list[int]:
    return [number for number, measured in statistics.items() if measured is not None and condition(measured)]
